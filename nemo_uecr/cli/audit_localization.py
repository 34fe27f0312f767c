r"""Whether ECR puts the blame of a failed response on the steps that a judge calls invalid.

First write the steps for the judge, then audit with the judge's labels:

  nemo-uecr score runs/demo --take batches --steps 1 --out runs/demo/scores-start
  nemo-uecr audit localization runs/demo/scores-start --write-steps judging-steps
  nemo-uecr audit localization runs/demo/scores-start --run runs/demo \
      --judge labels.jsonl --key judging-steps/key.jsonl

The judge gets judging-steps/steps.jsonl alone and writes one line an item:
{"item": NAME, "labels": [valid|invalid|uncertain|not_reasoning, one a step], "first_error": NUMBER or null}.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nemo_uecr.cli.audit import (
    add_scores_argument,
    add_settings_arguments,
    finish,
    require_audit_extras,
    require_folder,
    settings_of,
)
from nemo_uecr.cli.ranges import whole_from
from nemo_uecr.errors import DataError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_scores_argument(parser, "localization")
    parser.add_argument("--write-steps", type=Path, metavar="DIR", help="write blinded steps for a judge, and stop")
    parser.add_argument(
        "--limit", type=whole_from(1), default=200, metavar="N", help="how many responses to write (%(default)s)"
    )
    parser.add_argument("--judge", type=Path, metavar="FILE", help="the judge's labels (JSONL)")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the key of the steps")
    parser.add_argument("--checkpoint", type=int, default=0, metavar="STEP", help="whose responses (%(default)s)")
    parser.add_argument("--tokenizer", metavar="MODEL", help="of the responses (default: the teacher's)")
    add_settings_arguments(parser)
    parser.add_argument(
        "--shuffles", type=whole_from(1), default=100, metavar="N", help="within-response shuffles (%(default)s)"
    )
    parser.add_argument("--replicates", type=whole_from(1), default=10_000, metavar="N", help="bootstrap (%(default)s)")
    parser.add_argument(
        "--seed", type=whole_from(0), default=42, help="of shuffles, bootstrap and the judge's order (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Audit."""
    require_audit_extras()
    from nemo_uecr.audit.judged_steps import items_to_judge
    from nemo_uecr.audit.localization import localization_audit
    from nemo_uecr.audit.rollouts import read_scores
    from nemo_uecr.audit.step_judge import STEPS, read_labels, write_items
    from nemo_uecr.demo.assets import resolve
    from nemo_uecr.evaluation.engines import load_tokens

    scores = read_scores(args.scores)
    if args.write_steps is not None:
        require_folder(args.write_steps, "--write-steps")
        items = items_to_judge(scores, checkpoint=args.checkpoint, limit=args.limit, seed=args.seed)
        steps = write_items(items, args.write_steps, seed=args.seed)
        sys.stdout.write(f"{len(items)} responses, {steps} steps for the judge: {args.write_steps / STEPS}\n")
        return 0
    if args.judge is None or args.key is None:
        raise DataError("expected --judge LABELS and --key KEY; write the steps for a judge with --write-steps DIR")
    settings = settings_of(args, ("rho", "tau_delta", "tau_entropy"))
    tokenizer = load_tokens(resolve(args.tokenizer or scores.plan["teacher"]["name"])).tokenizer
    audit = localization_audit(
        scores,
        read_labels(args.judge, args.key),
        settings,
        tokenizer,
        checkpoint=args.checkpoint,
        shuffles=args.shuffles,
        replicates=args.replicates,
        seed=args.seed,
    )
    return finish(audit, args)
