"""Where step records go: a JSONL file always, and the clients that a run asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from nemo_uecr.data.json_text import decoded
from nemo_uecr.errors import InvariantError, RunFolderError
from nemo_uecr.files import append_whole, replace_file
from nemo_uecr.telemetry.clients import Client
from nemo_uecr.telemetry.names import METRICS


def append_record(path: Path, record: Mapping[str, object]) -> None:
    """Append one JSON line, whole or not at all, and push it to disk.

    A killed run leaves at most a half-written last line, which `truncate_records` drops; a full disk leaves none.
    """
    append_whole(path, (json.dumps(record, allow_nan=False) + "\n").encode())


def truncate_records(path: Path, *, last_step: int) -> None:
    """Drop records after ``last_step``, and a half-written last line, by writing the file anew."""
    if not path.exists():
        return
    kept = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if line.endswith(b"\n") and _step_of(line, f"{path}:{number}") <= last_step:
            kept.append(line)
    replace_file(path, b"".join(kept))


def _step_of(line: bytes, where: str) -> int:
    try:
        step = decoded(line)["step"]
        if not isinstance(step, int) or isinstance(step, bool):
            raise TypeError("step is no integer")
        return step
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{where}: not a step's record; the file was altered. Delete the line and run again with --resume"
        ) from error


def check_record(step: int, metrics: Mapping[str, float]) -> None:
    """Refuse a step's metrics that could not be read later.

    Raises:
        InvariantError: If a name is not in the table or a number is not finite.
    """
    for name, value in metrics.items():
        if name not in METRICS:
            raise InvariantError(f"metric {name!r} is not in the table of names; add it to telemetry/names.py")
        if not math.isfinite(value):
            raise InvariantError(f"metric {name} is {value} at step {step}; expected a finite number")


class StepLog:
    """Writes one record a step under the names of `nemo_uecr.telemetry.names`, as a context manager."""

    def __init__(self, folder: Path, clients: Sequence[Client]) -> None:
        """Write into ``folder / "metrics.jsonl"`` and tell the clients."""
        self._path = folder / "metrics.jsonl"
        self._clients = clients

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close(failed=kind is not None)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics.

        Raises:
            InvariantError: If a name is not in the table or a number is not finite.
        """
        check_record(step, metrics)
        append_record(self._path, {"step": step, **metrics})
        self._tell(step, metrics)

    def evaluation(self, step: int, average: Mapping[str, float]) -> None:
        """Tell the clients of an evaluation; its record is a line of ``evaluation.jsonl``."""
        metrics = {f"evaluation/{name}": average[name] for name in ("avg", "low", "high")}
        check_record(step, metrics)
        self._tell(step, metrics)

    def _tell(self, step: int, metrics: Mapping[str, float]) -> None:
        for client in self._clients:
            client.write(step, metrics)
