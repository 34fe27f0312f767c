"""Run a grid of methods on several students and write its tables and figures.

  nemo-uecr study examples/configs/study/small.yaml

The budget is printed before anything starts. Interrupted or repeated, the command does what is missing: finished runs
are kept, a half-done one continues from its checkpoint. SIGTERM (exit code 75) and Ctrl-C (130) end its processes too.
`--tables-only` makes tables and figures of what is there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.extras import require_extra
from nemo_uecr.errors import UecrError

if TYPE_CHECKING:
    from nemo_uecr.study.cells import Cell
    from nemo_uecr.study.schema import StudyConfig

__all__ = ["add_arguments", "run", "train_cell"]

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("study", metavar="CONFIG", help="study file")
    parser.add_argument("--budget", action="store_true", help="print the budget and stop")
    parser.add_argument(
        "--tables-only", action="store_true", help="make tables and figures again from the finished runs, train nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Forecast, run, summarise."""
    for extra in ("local", "study"):
        require_extra(extra)
    from nemo_uecr.files import locked
    from nemo_uecr.study.load import load_study
    from nemo_uecr.study.study import check_finished, check_folder, check_runs, forecast, summarise

    study = load_study(args.study)
    check_folder(study)
    if args.tables_only:
        with locked(Path(study.folder)):
            sys.stdout.write(f"summary: {summarise(study)}\n")
        return 0
    check_runs(study)  # a misspelt override must not wait for its turn
    with contextlib.nullcontext() if args.budget else locked(Path(study.folder)):
        check_finished(study)
        sys.stdout.write("".join(f"{line}\n" for line in forecast(study).lines()))
        sys.stdout.flush()
        if not args.budget:
            _train_and_summarise(study)
    return 0


def _train_and_summarise(study: StudyConfig) -> None:
    from nemo_uecr.stopping import listening
    from nemo_uecr.study.study import run_study

    with listening() as stop:
        summary = run_study(study, functools.partial(train_cell, study.config), stop=stop, report=logger.info)
    sys.stdout.write(f"summary: {summary}\n")


def train_cell(config: str, cell: Cell) -> str | None:
    """Train one cell, continuing it where it was begun; returns the error that a user should read, or None."""
    from nemo_uecr.cli.configuration import train_loaded
    from nemo_uecr.config.load import load_config

    logging.getLogger("nemo_uecr").setLevel(logging.WARNING)
    try:
        train_loaded(load_config(config, cell.overrides), resume=(cell.folder / "config.yaml").is_file())
    except UecrError as error:
        return " ".join(str(error).split())
    return None
