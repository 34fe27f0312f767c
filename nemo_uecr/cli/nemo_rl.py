"""What the commands do with a configuration whose back end is NeMo-RL."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_uecr.cli.configuration import objective_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_uecr.config.nemo_schema import NemoConfig

__all__ = ["check", "is_nemo_rl", "show", "train"]

logger = logging.getLogger(__name__)


def is_nemo_rl(path: str, overrides: Sequence[str]) -> bool:
    """Whether the configuration names NeMo-RL as its back end."""
    from nemo_uecr.config.nemo_load import backend_of

    return backend_of(path, overrides) == "nemo_rl"


def train(path: str, overrides: Sequence[str]) -> Path:
    """Train inside NeMo-RL; it continues from the newest checkpoint of the run folder by itself."""
    from nemo_uecr.config.nemo_load import load_nemo_config
    from nemo_uecr.nemo_adapter.launcher import train as launch

    config = load_nemo_config(path, overrides)
    _check_files(config)
    logger.info(_objective(config))
    return launch(config)


def check(path: str, overrides: Sequence[str]) -> None:
    """Validate, against NeMo-RL's own schema as well where it can be imported, and print the objective."""
    from nemo_uecr.config.nemo_load import load_nemo_config

    config = load_nemo_config(path, overrides)
    _check_files(config)
    if importlib.util.find_spec("nemo_rl") is None:
        native = "NeMo-RL cannot be imported here: its own schema was not checked"
    else:
        from nemo_uecr.nemo_adapter.launcher import check_schema

        native = f"NeMo-RL {check_schema(config)}: its schema accepts the run"
    sys.stdout.write(f"objective: {_objective(config)}\n{native}\n")


def show(path: str, overrides: Sequence[str]) -> None:
    """Print the complete configuration as YAML."""
    import yaml

    from nemo_uecr.config.nemo_load import load_nemo_config

    config = load_nemo_config(path, overrides)
    sys.stdout.write(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    sys.stdout.write(f"# objective: {_objective(config)}\n")


def _objective(config: NemoConfig) -> str:
    # The objective reads the sections `method` and `loss`, which both back ends share.
    shared: Any = config
    return objective_of(shared)


def _check_files(config: NemoConfig) -> None:
    from nemo_uecr.data.prepared import training_file

    training_file(Path(config.data.train), "data.train")
