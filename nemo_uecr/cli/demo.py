"""Prepare the demo's models and problems, train on them, and make the report.

The first time, a student and a larger teacher are trained on the spot and cached. Every key of
examples/configs/local/demo.yaml can be changed, for example:

  nemo-uecr demo method.name=grpo run.seed=1
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import nemo_uecr
from nemo_uecr.cli.configuration import load_and_report, telling_how_to_go_on, train_loaded
from nemo_uecr.errors import ConfigError

__all__ = ["add_arguments", "run"]

_CONFIG = Path("local", "demo.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=[],
        help="change one value, for example method.name=grpo run.folder=runs/grpo",
    )
    parser.add_argument("--no-open", action="store_true", help="do not open the report in the browser")


def run(args: argparse.Namespace) -> int:
    """Prepare, train, report."""
    from nemo_uecr.cli.main import dispatch

    loaded = load_and_report(demo_config_path(), with_free_folder(args.overrides))
    with telling_how_to_go_on(loaded.config.run.folder):
        folder = train_loaded(loaded, resume=False)
    return dispatch(["report", str(folder), *([] if args.no_open else ["--open"])])


def demo_config_path() -> str:
    """The shipped configuration of the demo: that of the clone, or the one inside an installed package.

    Raises:
        ConfigError: it is in neither place.
    """
    package = Path(nemo_uecr.__file__).resolve().parent
    places = [package.parent / "examples" / "configs" / _CONFIG, package / "configs" / _CONFIG]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ConfigError(f"no demo configuration at {' or '.join(map(str, places))}; install nemo-uecr again")
    shown = os.path.relpath(path)
    return str(path) if shown.startswith("..") else shown


def with_free_folder(overrides: Sequence[str]) -> list[str]:
    """The overrides, with the first unused of runs/demo, runs/demo-2, ... where they name no folder."""
    if any(text.lstrip("+").startswith("run.folder=") for text in overrides):
        return list(overrides)
    folder, number = "runs/demo", 1
    while os.path.exists(folder):
        number += 1
        folder = f"runs/demo-{number}"
    return [f"run.folder={folder}", *overrides]
