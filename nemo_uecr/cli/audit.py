"""What the audit commands share: where the scores are, where the result goes, and how it is shown."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.extras import require_extra

if TYPE_CHECKING:
    from nemo_uecr.audit.output import Audit

__all__ = ["add_bootstrap_arguments", "add_scores_argument", "finish", "require_audit_extras"]


def add_scores_argument(parser: argparse.ArgumentParser, name: str) -> None:
    """The folder of scores, and the output folder."""
    parser.add_argument("scores", metavar="SCORES", type=Path, help="folder that `nemo-uecr score` wrote")
    parser.add_argument("--out", type=Path, metavar="OUT", help=f"output folder (default: audits/{name} beside SCORES)")


def add_bootstrap_arguments(parser: argparse.ArgumentParser) -> None:
    """Replicates and seed of the problem-clustered bootstrap."""
    parser.add_argument("--replicates", type=int, default=2000, metavar="N", help="bootstrap replicates (2000)")
    parser.add_argument("--seed", type=int, default=42, help="seed of the bootstrap (42)")


def require_audit_extras() -> None:
    """Refuse early when what every audit needs is not installed."""
    require_extra("data")
    require_extra("plots")


def finish(audit: Audit, args: argparse.Namespace) -> int:
    """Write the audit, print its table, say where it is."""
    from nemo_uecr.audit.output import text_table, write_audit

    beside: Path = args.scores if "scores" in args else args.run
    out = args.out
    if out is None:
        out = (beside.resolve().parent if "scores" in args else beside) / "audits" / audit.name
    written = write_audit(out, audit)
    sys.stdout.write(f"{audit.title}\n{text_table(audit.table)}\naudit: {written}\n")
    return 0
