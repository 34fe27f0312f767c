"""`python -m nemo_uecr.cli.bench_scoring`: time teacher scoring beside what other projects offer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nemo_uecr.cli.common import write_json

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all results to this file")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: checks that it runs")


def run(args: argparse.Namespace) -> int:
    """Run the benchmark, write the table, and the JSON file if asked."""
    from nemo_uecr.bench.scoring import FULL, QUICK, run_all
    from nemo_uecr.bench.scoring_table import table

    results = run_all(QUICK if args.quick else FULL)
    sys.stdout.write(table(results))
    write_json(args.json, results)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    sys.exit(run(parser.parse_intermixed_args()))
