"""Screen a prepared folder by sentence embeddings: near rows are held for a person.

Interrupted, it goes on where it stopped. The review file then has every held row; fill its verdict column with keep or
drop and run `nemo-uecr data apply`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nemo_uecr.cli.ranges import number_between

__all__ = ["add_arguments", "run"]

#: Chosen on rewritten problems of AIME24 and AMC23 with the packaged model; docs/data.md has the measurement.
HOLD_AT = 0.7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    from nemo_uecr.data.embedding import PACKAGED

    parser.add_argument("folder", type=Path, metavar="DIR", help="folder made by `data prepare --screen ...`")
    parser.add_argument("--model", default=PACKAGED, help="sentence model: folder or hub name (default: %(default)s)")
    parser.add_argument(
        "--hold-at",
        type=number_between(-1.0, 1.0),
        default=HOLD_AT,
        help="cosine to hold a row at (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the stage and report its rate."""
    from nemo_uecr.data.embedding_stage import screen_by_embedding

    done = screen_by_embedding(args.folder, model=args.model, hold_at=args.hold_at)
    rate = f", {done.embedded / done.seconds:.0f} rows a second" if done.embedded else ""
    counts = done.manifest["counts"]
    see = f"; see {args.folder}/screening/review.csv" if counts["held"] else ""
    sys.stdout.write(
        f"{done.rows} rows compared ({done.embedded} embedded now{rate}; {done.rows - done.embedded} from before)\n"
        f"  held     {done.held:>7}  by this stage, {counts['held']} in all{see}\n"
        f"  kept     {counts['kept']:>7}  {args.folder}/train.jsonl\n"
    )
    return 0
