"""Paired comparison of two evaluations on the same problems: second minus first, with interval and p-value.

Either two evaluation folders, or two sample files of training runs (RUN/evaluations/step-000040.jsonl).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("first", type=Path, help="evaluation folder or sample file")
    parser.add_argument("second", type=Path, help="evaluation folder or sample file")
    parser.add_argument("--seed", type=int, default=42, help="seed of the resampling (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the differences in percent."""
    from nemo_uecr.evaluation.compare import compare

    lines = [
        f"{args.second} minus {args.first}, percent, 95% interval over problems",
        f"  {'':<12} {'first':>6} {'second':>6}   diff                       p  better worse",
    ]
    for name, each in compare(args.first, args.second, seed=args.seed).items():
        lines.append(
            f"  {name:<12} {100 * each.first:6.2f} {100 * each.second:6.2f} {100 * each.difference:+6.2f} "
            f"[{100 * each.low:+6.2f}, {100 * each.high:+6.2f}] {each.p_value:7.4f}  "
            f"{each.better:>6} {each.worse:>5} of {each.problems}"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
