"""Evaluate the checkpoints of a run and select one by a named rule.

  nemo-uecr evaluate sweep runs/uecr --rule best --select-on aime24 --max-tokens 16384 --out sweeps/uecr

Rules: best (highest average of avg@k; the earlier of equal ones), earliest-near-best (the first checkpoint within the
best one's 95% interval), last. A checkpoint selected on the benchmarks that are then reported is an optimistic choice:
name others with --select-on, or say so.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from nemo_uecr.cli.evaluate_options import add_evaluation_arguments, place_benchmarks, settings_of

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("checkpoints", nargs="+", type=Path, metavar="RUN|CHECKPOINT", help="in the order of training")
    parser.add_argument("--rule", default="best", help="best, earliest-near-best or last (default: %(default)s)")
    parser.add_argument("--select-on", nargs="+", default=[], metavar="B", help="benchmarks the rule looks at (all)")
    add_evaluation_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate every checkpoint and write ``sweep.json`` with the rule and the choice."""
    from nemo_uecr.data.benchmarks import load_benchmarks
    from nemo_uecr.demo.assets import resolve
    from nemo_uecr.evaluation.compare import check_rule, select
    from nemo_uecr.evaluation.runner import evaluate
    from nemo_uecr.evaluation.samples import lines_of
    from nemo_uecr.files import replace_file

    settings, benchmarks = settings_of(args), load_benchmarks(place_benchmarks(args.benchmarks, resolve))
    check_rule(args.rule, args.select_on, list(benchmarks))
    checkpoints = [folder for given in args.checkpoints for folder in _checkpoints(given)]
    results = []
    for folder in checkpoints:
        label = folder.name
        results.append(evaluate(label, str(folder), benchmarks, settings, args.out / label))
        sys.stdout.write("\n".join(lines_of(results[-1])) + "\n")
    chosen = select(results, args.rule, args.select_on)
    record = {
        "rule": args.rule,
        "selected_on": args.select_on or list(benchmarks),
        "selected": str(checkpoints[chosen]),
        "averages": {result["label"]: result["average"] for result in results},
    }
    replace_file(args.out / "sweep.json", (json.dumps(record, indent=1) + "\n").encode())
    on = ", ".join(record["selected_on"])
    sys.stdout.write(f"selected by rule {args.rule!r} on {on}: {checkpoints[chosen]}\n")
    return 0


def _checkpoints(given: Path) -> list[Path]:
    from nemo_uecr.errors import DataError

    inside = sorted((given / "checkpoints").glob("step-*"))
    if inside:
        return inside
    if not (given / "config.json").is_file():
        raise DataError(f"{given}: no checkpoints/step-* and no config.json; expected a run folder or a checkpoint")
    return [given]
