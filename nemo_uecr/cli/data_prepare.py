"""Prepare training problems: load, filter by difficulty and answer type, screen against benchmarks, sample.

  nemo-uecr data prepare --source deepmath.jsonl --screen aime24.jsonl amc23.jsonl --difficulty 5 7 --out DIR

DIR/train.jsonl        the kept rows, ready as data.train
DIR/manifest.json      source, settings, counts by reason, sha256 of every file and row set
DIR/screening/         removed rows with their reasons, rows held for a person, the review file

A source or benchmark is a file, a folder, or a name on the hub (network needed); aime24, aime25, amc23, hmmt_feb25
and hmmt_nov25 are known by these names. A row that might be a benchmark problem is held, not kept, until
`nemo-uecr data apply` reads a verdict on it.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
import time
from pathlib import Path

from nemo_uecr.cli.ranges import whole_from

__all__ = ["add_arguments", "run"]

DEEPMATH = "zwhe99/DeepMath-103K"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--source", default=DEEPMATH, help="file, folder or hub name (default: %(default)s)")
    parser.add_argument("--revision", default=None, help="branch, tag or commit on the hub (default: main)")
    parser.add_argument("--screen", nargs="+", default=[], metavar="BENCHMARK", help="file, NAME=FILE or known name")
    parser.add_argument("--difficulty", nargs=2, type=float, metavar=("LO", "HI"), help="both included")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--keep-answers", nargs="+", metavar="TYPE", help="answer types to keep, and no others")
    group.add_argument("--drop-answers", nargs="+", metavar="TYPE", help="answer types to drop")
    parser.add_argument("--sample", type=whole_from(1), metavar="N", help="draw N rows among those that pass")
    parser.add_argument("--seed", type=int, default=42, help="seed of the draw (default: %(default)s)")
    parser.add_argument("--workers", type=whole_from(1), default=None, help="processes (default: one a processor)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to fill")


def run(args: argparse.Namespace) -> int:
    """Prepare the folder and print what became of the rows."""
    from nemo_uecr.data.prepare import Settings, prepare

    began = time.perf_counter()
    settings = Settings(
        source=args.source,
        revision=args.revision,
        screens=tuple(args.screen),
        difficulty=None if args.difficulty is None else _range(args.difficulty[0], args.difficulty[1]),
        types=_types(args.keep_answers, args.drop_answers),
        sample=args.sample,
        seed=args.seed,
        workers=args.workers or os.cpu_count() or 1,
    )
    manifest = prepare(settings, args.out)
    seconds = time.perf_counter() - began
    counts = manifest["counts"]
    # Linux counts in KiB.
    peak = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    review = args.out / "screening" / "review.csv"
    lines = [
        f"{counts['read']} rows read in {seconds:.1f} s ({counts['read'] / seconds:.0f} a second, "
        f"at most {peak:.0f} MiB in the largest process and its parent)",
        *(f"  removed  {number:>7}  {reason}" for reason, number in counts["reasons"].items()),
        f"  held     {counts['held']:>7}  near a benchmark problem" + (f"; see {review}" if counts["held"] else ""),
        f"  kept     {counts['kept']:>7}  {args.out}/train.jsonl",
        f"manifest: {args.out}/manifest.json",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _types(keep: list[str] | None, drop: list[str] | None) -> frozenset[str]:
    from nemo_uecr.data.answer_types import NAMES, checked_types

    if keep is not None:
        return checked_types(tuple(keep), "--keep-answers")
    return frozenset(NAMES) - checked_types(tuple(drop or ()), "--drop-answers")


def _range(low: float, high: float) -> tuple[float, float]:
    from nemo_uecr.errors import DataError

    if not -math.inf < low <= high < math.inf:  # NaN is neither below nor above
        raise DataError(f"--difficulty: got {low:g} {high:g}, expected two finite numbers, the lower first")
    return low, high
