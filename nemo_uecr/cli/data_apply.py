"""Apply the verdicts of a filled review file: held rows go back to the kept ones, or are removed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder made by `data prepare`")
    parser.add_argument(
        "--review", type=Path, metavar="FILE", help="filled review file (default: DIR/screening/review.csv)"
    )


def run(args: argparse.Namespace) -> int:
    """Apply and print what became of the held rows."""
    from nemo_uecr.data.manifest import REVIEW
    from nemo_uecr.data.revise import apply_verdicts

    manifest = apply_verdicts(args.folder, args.review or args.folder / REVIEW)
    verdicts, counts = manifest["stages"][-1]["apply"], manifest["counts"]
    sys.stdout.write(
        f"{verdicts['kept']} held rows kept, {verdicts['dropped']} dropped\n"
        f"  kept     {counts['kept']:>7}  {args.folder}/train.jsonl\n"
    )
    return 0
