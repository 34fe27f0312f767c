"""The paper's tables from evaluation folders and training runs.

  nemo-uecr table initial=ev/base grpo=ev/grpo uecr=ev/uecr --format latex
  nemo-uecr table runs/grpo runs/puu runs/uecr --layout ablation

A label that is a method's name gets the paper's title. Best bold, second underlined, 95% intervals in brackets.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("runs", nargs="+", metavar="[LABEL=]RUN", help="evaluation folder or run folder")
    parser.add_argument("--layout", choices=["main", "ablation"], default="main", help="default: %(default)s")
    parser.add_argument(
        "--format", choices=["markdown", "latex", "html"], default="markdown", help="default: %(default)s"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Print or write the table."""
    from nemo_uecr.evaluation.tables import FORMATS, build_table, read_rows
    from nemo_uecr.files import replace_file

    rows, k = read_rows(args.runs)
    text = FORMATS[args.format](build_table(rows, layout=args.layout, k=k))
    if args.out is None:
        sys.stdout.write(text)
    else:
        replace_file(args.out, text.encode())
        sys.stdout.write(f"{args.out}\n")
    return 0
