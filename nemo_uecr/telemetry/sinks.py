"""Where step records go: a JSONL file always, TensorBoard when asked for."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.errors import DependencyError, InvariantError
from nemo_uecr.telemetry.names import METRICS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def append_record(path: Path, record: Mapping[str, object]) -> None:
    """Append one JSON line and push it to disk, so that a killed run loses at most a half-written last line."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record, allow_nan=False) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


def truncate_records(path: Path, *, last_step: int) -> None:
    """Drop records after ``last_step``, and a half-written last line, by writing the file anew aside."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n") and json.loads(line)["step"] <= last_step:
            kept.append(line)
    aside = path.with_suffix(".tmp")
    with aside.open("w", encoding="utf-8") as lines:
        lines.writelines(kept)
        lines.flush()
        os.fsync(lines.fileno())
    aside.replace(path)


class StepLog:
    """Writes one record a step under the names of `nemo_uecr.telemetry.names`."""

    def __init__(self, folder: Path, *, tensorboard: str) -> None:
        """Open the sinks; ``tensorboard`` is "auto", "on" or "off"."""
        self._path = folder / "metrics.jsonl"
        self._events = _tensorboard(folder / "tensorboard", tensorboard)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics.

        Raises:
            InvariantError: If a name is not in the table or a number is not finite.
        """
        for name, value in metrics.items():
            if name not in METRICS:
                raise InvariantError(f"metric {name!r} is not in the table of names; add it to telemetry/names.py")
            if not math.isfinite(value):
                raise InvariantError(f"metric {name} is {value} at step {step}; expected a finite number")
        append_record(self._path, {"step": step, **metrics})
        if self._events is not None:
            for name, value in metrics.items():
                self._events.add_scalar(name, value, step)
            self._events.flush()

    def close(self) -> None:
        """Close the sinks."""
        if self._events is not None:
            self._events.close()


def _tensorboard(folder: Path, switch: str) -> SummaryWriter | None:
    if switch == "off":
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as missing:
        if switch == "auto":
            return None
        raise DependencyError(
            "telemetry.tensorboard is on, but TensorBoard is not installed; pip install 'nemo-uecr[tensorboard]'"
        ) from missing
    return SummaryWriter(str(folder))
