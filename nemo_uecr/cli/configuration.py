"""What the commands that take a configuration share: its arguments, and saying what is unused."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import sys
from typing import TYPE_CHECKING

from nemo_uecr.cli.extras import require_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from nemo_uecr.config.load import LoadedConfig
    from nemo_uecr.config.nemo_schema import AnyConfig
    from nemo_uecr.stopping import StopRequest

__all__ = [
    "add_config_arguments",
    "load_and_report",
    "objective_of",
    "summary",
    "telling_how_to_go_on",
    "train_loaded",
    "train_until",
]

logger = logging.getLogger(__name__)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """CONFIG and its overrides."""
    parser.add_argument("config", metavar="CONFIG", help="YAML configuration file")
    parser.add_argument(
        "overrides",
        metavar="key=value",
        nargs="*",
        default=[],
        help="change one value, for example method.name=grpo train.steps=10",
    )


def load_and_report(path: str, overrides: Sequence[str]) -> LoadedConfig:
    """Load a configuration and log the settings that its method does not use."""
    from nemo_uecr.config.load import load_config
    from nemo_uecr.config.unused import unused_line

    loaded = load_config(path, overrides)
    line = unused_line(loaded.config, loaded.origins)
    if line is not None:
        logger.info(line)
    return loaded


def train_loaded(loaded: LoadedConfig, *, resume: bool) -> Path:
    """Train with the local back end until the last step or a signal; returns the run folder."""
    from nemo_uecr.stopping import listening

    with listening() as stop:
        return train_until(loaded, resume=resume, stop=stop)


def train_until(loaded: LoadedConfig, *, resume: bool, stop: StopRequest) -> Path:
    """Train with the local back end until the last step or the request; returns the run folder."""
    require_extra("local")
    from nemo_uecr.demo.assets import resolve
    from nemo_uecr.local.run import train

    objective = objective_of(loaded.config)
    return train(loaded.config, resume=resume, origins=loaded.origins, objective=objective, locate=resolve, stop=stop)


@contextlib.contextmanager
def telling_how_to_go_on(folder: str) -> Iterator[None]:
    """Ctrl-C saves nothing; afterwards print the command that continues the run from its newest checkpoint."""
    try:
        yield
    except KeyboardInterrupt:
        written = os.path.join(folder, "config.yaml")
        if os.path.exists(written):
            command = shlex.join(["nemo-uecr", "train", written, "--resume"])
            sys.stderr.write(f"to go on from the newest checkpoint: {command}\n")
        raise


def objective_of(config: AnyConfig) -> str:
    """The objective of a configuration; joins the loss of `config` with the method's equation of `core`."""
    from nemo_uecr.config.objective import objective
    from nemo_uecr.core.invariants import check_names
    from nemo_uecr.core.methods import METHODS

    method = METHODS[config.method.name]
    check_names(method)
    return objective(config, advantage=method.equation)


def summary(config: AnyConfig, origins: Mapping[str, str], *, prefix: str) -> str:
    """The objective, and the settings that the method does not use, each on a line of its own."""
    from nemo_uecr.config.unused import unused_line

    lines = [f"objective: {objective_of(config)}"]
    unused = unused_line(config, origins)
    if unused is not None:
        lines.append(unused)
    return "".join(f"{prefix}{line}\n" for line in lines)
