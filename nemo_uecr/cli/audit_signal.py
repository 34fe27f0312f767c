r"""What the teacher's score adds to the verifier's verdict, and how often it contradicts it, by checkpoint.

SCORES has several responses to each prompt by one or several checkpoints, each with its own student's scores.

  nemo-uecr audit signal runs/demo/scores
  nemo-uecr audit signal runs/demo/scores --write-pairs judging --pairs 350
  nemo-uecr audit signal runs/demo/scores --judge verdicts.jsonl --key judging/key.jsonl

--write-pairs writes blinded pairs of equally judged responses (judging/pairs.jsonl, for the judge) and their key.
A judge's file has {"pair": "...", "preferred": "first", "second", "tie" or "unjudgeable"} a line.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nemo_uecr.cli.audit import (
    add_bootstrap_arguments,
    add_scores_argument,
    finish,
    require_audit_extras,
    require_folder,
)
from nemo_uecr.cli.ranges import whole_from
from nemo_uecr.errors import DataError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_scores_argument(parser, "signal")
    add_bootstrap_arguments(parser)
    parser.add_argument("--judge", type=Path, metavar="FILE", help="a judge's verdicts on pairs (JSONL)")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the key of the pairs")
    parser.add_argument("--write-pairs", type=Path, metavar="DIR", help="write blinded pairs for a judge, and stop")
    parser.add_argument("--pairs", type=whole_from(1), default=350, metavar="N", help="how many to write (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Audit."""
    require_audit_extras()
    from nemo_uecr.audit.judge import read_judge, write_pairs
    from nemo_uecr.audit.rollouts import read_scores
    from nemo_uecr.audit.signal import signal_audit

    if (args.judge is None) != (args.key is None):
        raise DataError("--judge and --key go together; give the verdicts and the key of their pairs")
    scores = read_scores(args.scores)
    if args.write_pairs is not None:
        require_folder(args.write_pairs, "--write-pairs")
        written = write_pairs(scores, args.write_pairs, pairs=args.pairs, seed=args.seed)
        sys.stdout.write(f"{written} pairs for the judge: {args.write_pairs}/pairs.jsonl\n")
        return 0
    judged = None if args.judge is None else read_judge(args.judge, args.key)
    return finish(signal_audit(scores, judged, replicates=args.replicates, seed=args.seed), args)
