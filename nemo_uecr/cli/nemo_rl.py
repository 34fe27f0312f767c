"""What the commands do with a configuration whose back end is NeMo-RL."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.cli.configuration import objective_of, summary

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    objective, unused = objective_of(loaded.config), unused_line(loaded.config, loaded.origins)
    logger.info(objective)
    if unused is not None:
        logger.info(unused)
    with locked(Path(loaded.config.run.folder)):
        return launch(loaded.config, resume=resume, origins=loaded.origins, objective=objective)


def check(path: str, overrides: Sequence[str]) -> None:
    """Validate, against NeMo-RL's own schema as well where it can be imported, and print the objective."""
    from nemo_uecr.config.nemo_load import load_nemo
    from nemo_uecr.nemo_adapter.preflight import check_problems, check_visible_models

    loaded = load_nemo(path, overrides)
    check_problems(loaded.config)
    looked_at = check_visible_models(loaded.config)
    if importlib.util.find_spec("nemo_rl") is None:
        native = "NeMo-RL cannot be imported here: its own schema was not checked"
    else:
        from nemo_uecr.nemo_adapter.launcher import check_schema

        native = f"NeMo-RL {check_schema(loaded.config)}: its schema accepts the run"
    models = (
        "" if looked_at else "a model's folder is not here: its layout and lengths are checked when the run starts\n"
    )
    sys.stdout.write(f"{summary(loaded.config, loaded.origins, prefix='')}{models}{native}\n")


def show(path: str, overrides: Sequence[str]) -> None:
    """Print the complete configuration as YAML, every value with the file it comes from."""
    from nemo_uecr.config.nemo_load import load_nemo
    from nemo_uecr.config.show import annotated_yaml

    loaded = load_nemo(path, overrides)
    sys.stdout.write(annotated_yaml(loaded.config, loaded.origins))
    sys.stdout.write(summary(loaded.config, loaded.origins, prefix="# "))
