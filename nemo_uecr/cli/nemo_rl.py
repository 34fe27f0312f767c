"""What the commands do with a configuration whose back end is NeMo-RL."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.configuration import objective_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nemo_uecr.config.nemo_schema import NemoConfig

__all__ = ["check", "is_nemo_rl", "train"]

logger = logging.getLogger(__name__)


def is_nemo_rl(path: str, overrides: Sequence[str]) -> bool:
    """Whether the configuration names NeMo-RL as its back end."""
    from nemo_uecr.config.nemo_load import backend_of

    return backend_of(path, overrides) == "nemo_rl"


def train(path: str, overrides: Sequence[str], *, resume: bool) -> Path:
    """Train inside NeMo-RL; with ``resume`` from the newest checkpoint of the run folder."""
    from nemo_uecr.config.nemo_load import load_nemo
    from nemo_uecr.config.unused import unused_line
    from nemo_uecr.files import locked
    from nemo_uecr.nemo_adapter.launcher import train as launch

    loaded = load_nemo(path, overrides)
    objective, unused = objective_of(loaded.config), unused_line(loaded.config, loaded.origins)
    logger.info(objective)
    if unused is not None:
        logger.info(unused)
    with locked(Path(loaded.config.run.folder)):
        return launch(loaded.config, resume=resume, origins=loaded.origins, objective=objective)


def check(config: NemoConfig) -> str:
    """Validate, also against NeMo-RL's own schema where it can be imported; returns lines on what was checked."""
    from nemo_uecr.nemo_adapter.preflight import check_problems, check_visible_models

    check_problems(config)
    looked_at = check_visible_models(config)
    if importlib.util.find_spec("nemo_rl") is None:
        native = "NeMo-RL cannot be imported here: its own schema was not checked"
    else:
        from nemo_uecr.nemo_adapter.launcher import check_schema

        native = f"NeMo-RL {check_schema(config)}: its schema accepts the run"
    models = (
        "" if looked_at else "a model's folder is not here: its layout and lengths are checked when the run starts\n"
    )
    return f"{models}{native}\n"
