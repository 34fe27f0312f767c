"""What `--dry-run` of a command says: its settings as they were read."""

from __future__ import annotations

import argparse
import sys

__all__ = ["add_dry_run_argument", "print_settings"]


def add_dry_run_argument(parser: argparse.ArgumentParser) -> None:
    """`--dry-run`."""
    parser.add_argument("--dry-run", action="store_true", help="look at everything that is named; make nothing")


def print_settings(args: argparse.Namespace) -> None:
    """One line a setting."""
    lines = [f"{name}: {value}" for name, value in vars(args).items() if name != "dry_run"]
    sys.stdout.write("\n".join(lines) + "\n")
