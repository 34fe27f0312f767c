"""Whether a run may be continued under a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from nemo_uecr.config.dotted import flattened
from nemo_uecr.config.load import flat_values
from nemo_uecr.errors import CheckpointError

__all__ = ["check_same_configuration"]

#: Keys that a resumed run may change: they alter what is written, not what is trained.
FREE_KEYS = ("train.steps", "telemetry.", "checkpoint.", "run.folder")


def check_same_configuration(where: Path, config: BaseModel, saved: Mapping[str, object]) -> None:
    """Refuse to continue a run under another configuration.

    Args:
        where: what was written with ``saved``, for the message.
        config: the present run's.
        saved: the configuration that stands there.

    Raises:
        CheckpointError: naming the first key that differs and may not.
    """
    ours, theirs = flat_values(config), flattened(saved)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key) and not key.startswith(FREE_KEYS):
            raise CheckpointError(
                f"{where} was written with {key}={theirs.get(key)!r}, this run has {ours.get(key)!r}; resume with "
                "the same configuration or choose another run.folder"
            )
