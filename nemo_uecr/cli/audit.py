"""What the audit commands share: where the scores are, where the result goes, and how it is shown."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.extras import require_extra
from nemo_uecr.cli.ranges import whole_from
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_uecr.audit.output import Audit
    from nemo_uecr.core.records import Settings

__all__ = [
    "add_bootstrap_arguments", "add_scores_argument", "add_settings_arguments", "finish", "require_audit_extras",
    "require_folder", "settings_of",
]  # fmt: skip


def add_scores_argument(parser: argparse.ArgumentParser, name: str) -> None:
    """The folder of scores, and the output folder."""
    parser.add_argument("scores", metavar="SCORES", type=Path, help="folder that `nemo-uecr score` wrote")
    parser.add_argument("--out", type=Path, metavar="OUT", help=f"output folder (default: audits/{name} beside SCORES)")


def add_bootstrap_arguments(parser: argparse.ArgumentParser) -> None:
    """Replicates and seed of the problem-clustered bootstrap."""
    parser.add_argument(
        "--replicates", type=whole_from(1), default=2000, metavar="N", help="bootstrap replicates (%(default)s)"
    )
    parser.add_argument("--seed", type=whole_from(0), default=42, help="seed of the bootstrap (%(default)s)")


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """The method's settings: those of a run, or given one by one; nothing has a default."""
    parser.add_argument("--run", type=Path, metavar="RUN", help="run folder; its config.yaml has the method's settings")
    parser.add_argument(
        "--set", dest="settings", metavar="key=value", nargs="+", action="extend", default=[],
        help="the method's settings: alpha, rho, tau_delta, tau_entropy; they go before those of --run",
    )  # fmt: skip


def settings_of(args: argparse.Namespace, needed: Sequence[str]) -> Settings:
    """The method's settings as the command line gives them.

    Raises:
        DataError: If one that is needed is not given.
    """
    from nemo_uecr.cli.replay import parse_settings, setting_words
    from nemo_uecr.config.written import written_config

    words = [] if args.run is None else setting_words(written_config(args.run / "config.yaml").method)
    settings = parse_settings([*words, *args.settings])
    missing = [name for name in needed if getattr(settings, name) is None]
    if missing:
        raise DataError(
            f"{', '.join(missing)} of the method: not given; expected --run RUN whose config.yaml has "
            f"{'it' if len(missing) == 1 else 'them'}, or --set {' '.join(f'{name}=VALUE' for name in missing)}"
        )
    return settings


def require_audit_extras() -> None:
    """Refuse early when what every audit needs is not installed."""
    require_extra("data")
    require_extra("plots")


def require_folder(path: Path, option: str) -> None:
    """Refuse to write into what is no folder.

    Raises:
        DataError: If a file of that name is there.
    """
    if path.exists() and not path.is_dir():
        raise DataError(f"{option} {path}: is a file; expected a folder, new or not")


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
