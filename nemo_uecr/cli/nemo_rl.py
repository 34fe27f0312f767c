"""What the commands do with a configuration whose back end is NeMo-RL."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.configuration import objective_of, summary
from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_uecr.config.nemo_schema import NemoConfig

__all__ = ["check", "is_nemo_rl", "show", "train"]

logger = logging.getLogger(__name__)


def is_nemo_rl(path: str, overrides: Sequence[str]) -> bool:
    """Whether the configuration names NeMo-RL as its back end."""
    from nemo_uecr.config.nemo_load import backend_of

    return backend_of(path, overrides) == "nemo_rl"


def train(path: str, overrides: Sequence[str], *, resume: bool) -> Path:
    """Train inside NeMo-RL; with ``resume`` from the newest checkpoint of the run folder."""
    from nemo_uecr.config.nemo_load import load_nemo
    from nemo_uecr.config.unused import unused_line
    from nemo_uecr.data.run_lock import locked
    from nemo_uecr.nemo_adapter.launcher import train as launch

    loaded = load_nemo(path, overrides)
    _check_files(loaded.config)
    objective, unused = objective_of(loaded.config), unused_line(loaded.config, loaded.origins)
    logger.info(objective)
    if unused is not None:
        logger.info(unused)
    with locked(Path(loaded.config.run.folder)):
        return launch(loaded.config, resume=resume, origins=loaded.origins, objective=objective)


def check(path: str, overrides: Sequence[str]) -> None:
    """Validate, against NeMo-RL's own schema as well where it can be imported, and print the objective."""
    from nemo_uecr.config.nemo_load import load_nemo

    loaded = load_nemo(path, overrides)
    _check_files(loaded.config)
    if importlib.util.find_spec("nemo_rl") is None:
        native = "NeMo-RL cannot be imported here: its own schema was not checked"
    else:
        from nemo_uecr.nemo_adapter.launcher import check_schema

        native = f"NeMo-RL {check_schema(loaded.config)}: its schema accepts the run"
    sys.stdout.write(f"{summary(loaded.config, loaded.origins, prefix='')}{native}\n")


def show(path: str, overrides: Sequence[str]) -> None:
    """Print the complete configuration as YAML, every value with the file it comes from."""
    from nemo_uecr.config.nemo_load import load_nemo
    from nemo_uecr.config.show import annotated_yaml

    loaded = load_nemo(path, overrides)
    sys.stdout.write(annotated_yaml(loaded.config, loaded.origins))
    sys.stdout.write(summary(loaded.config, loaded.origins, prefix="# "))


def _check_files(config: NemoConfig) -> None:
    from nemo_uecr.data.prepared import training_file

    training_file(Path(config.data.train), "data.train")
    for name, path in config.evaluation.benchmarks.items():
        if not Path(path).is_file():
            raise DataError(f"evaluation.benchmarks.{name}: no file {path}; give the path of a JSONL file of problems")
