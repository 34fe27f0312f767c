"""`nemo-uecr bench scoring`: time teacher scoring beside what other projects offer."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all results to this file")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: checks that it runs")


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, write the table, and the JSON file if asked."""
    from nemo_uecr.bench.scoring import FULL, QUICK, run_all
    from nemo_uecr.bench.scoring_table import table
    from nemo_uecr.data.atomic import replace_file

    out: Path | None = args.json
    if out is not None:
        _refuse_unwritable(out)
    results = run_all(QUICK if args.quick else FULL)
    sys.stdout.write(table(results))
    if out is not None:
        replace_file(out, (json.dumps(results, indent=2) + "\n").encode())
    return 0


def _refuse_unwritable(out: Path) -> None:
    from nemo_uecr.errors import DataError

    if not out.absolute().parent.is_dir():
        raise DataError(f"--json: the folder {out.parent} does not exist; create it first")
    if out.exists() and not out.is_file():
        raise DataError(f"--json: {out} exists and is no regular file; expected a file to write")
