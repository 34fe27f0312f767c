"""Where a run's records go: JSONL files always, the clients that a run asks for, and progress for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from nemo_uecr.errors import InvariantError, RunFolderError
from nemo_uecr.files import append_whole, replace_file
from nemo_uecr.telemetry.clients import Client
from nemo_uecr.telemetry.metric_table import metric_of

STEPS, EVALUATIONS = "metrics.jsonl", "evaluation.jsonl"
Record = dict[str, Any]


def append_record(path: Path, record: Mapping[str, object]) -> None:
    """Append one JSON line, whole or not at all, and push it to disk; a kill leaves at most half of a last line."""
    append_whole(path, _line(record))


def read_records(path: Path) -> tuple[list[Record], bool]:
    """The records of a file in its order, and whether it ends in half of one; a missing file has none."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append({**json.loads(line)})
        except (ValueError, TypeError) as error:
            if not line.endswith(b"\n"):  # the run is writing it, or was killed while writing
                return records, True
            raise RunFolderError(f"{path}:{number}: not a record ({error}); the file is corrupt") from error
    return records, False


def truncate_records(path: Path, *, last_step: int) -> None:
    """Drop records after ``last_step``, and a half-written last line, by writing the file anew."""
    if path.exists():
        records, _ = read_records(path)
        replace_file(path, b"".join(_line(record) for record in records if record["step"] <= last_step))


def _line(record: Mapping[str, object]) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def check_record(step: int, metrics: Mapping[str, float]) -> None:
    """Refuse a step's metrics that could not be read later: an unknown name, a number that is not finite."""
    for name, value in metrics.items():
        if metric_of(name) is None:
            raise InvariantError(f"metric {name!r} is not in the table of names; add it to telemetry/metric_table.py")
        if not math.isfinite(value):
            raise InvariantError(f"metric {name} is {value} at step {step}; expected a finite number")


class Progress:
    """Reports steps and evaluations: below a bar on a terminal, as plain lines elsewhere."""

    def __init__(self, *, total: int, style: str, stream: TextIO | None = None) -> None:
        """Choose the form: ``style`` is "auto", "bar", "lines" or "off"."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        stream = sys.stderr if stream is None else stream
        with_bar = style == "bar" or (style == "auto" and stream.isatty())
        self._total = total
        self._console = Console(file=stream, force_terminal=with_bar, quiet=style == "off", highlight=False)
        columns = (BarColumn(24), TextColumn("{task.description}"), TimeRemainingColumn(compact=True))
        self._bar = Bar(*columns, console=self._console, auto_refresh=False, disable=not with_bar)
        self._task = self._bar.add_task(f"step 0/{total}", total=total, start=False)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report a finished step."""
        shown = (
            f"step {step}/{self._total}  reward {metrics['reward/task_mean']:.3f}  "
            f"mixed groups {metrics['group/mixed_share']:.0%}  length {metrics['response/length_mean']:.1f}  "
            f"grad {metrics['policy/grad_norm']:.3f}  {metrics['time/step_s']:.2f} s"
        )
        if self._bar.disable:
            self._print(shown)
            return
        if not self._bar.live.is_started:
            self._bar.start()
            self._bar.reset(self._task, completed=step - 1)  # a resumed run does not begin at 0
        self._bar.update(self._task, completed=step, description=shown, refresh=True)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Report an evaluation."""
        average = record["average"]
        sets = "  ".join(f"{name} {100 * found['avg']:.1f}" for name, found in record["sets"].items())
        self._print(
            f"step {record['step']}/{self._total}  avg@{record['samples']} {100 * average['avg']:.1f} "
            f"[{100 * average['low']:.1f}, {100 * average['high']:.1f}]  {sets}  {record['seconds']:.1f} s"
        )

    def close(self) -> None:
        """End the bar."""
        self._bar.stop()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


class StepLog:
    """Writes what a run says of its steps under the names of `telemetry.metric_table`, as a context manager."""

    def __init__(self, folder: Path, clients: Sequence[Client], progress: Progress) -> None:
        self._folder = folder
        self._clients = clients
        self._progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.close()
        for client in self._clients:
            client.close(failed=kind is not None)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics into ``metrics.jsonl``."""
        check_record(step, metrics)
        append_record(self._folder / STEPS, {"step": step, **metrics})
        for client in self._clients:
            client.write(step, metrics)
        self._progress.step(step, metrics)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Write an evaluation's record into ``evaluation.jsonl``; the clients are told the average."""
        append_record(self._folder / EVALUATIONS, record)
        average = {f"evaluation/{name}": record["average"][name] for name in ("avg", "low", "high")}
        for client in self._clients:
            client.write(record["step"], average)
        self._progress.evaluation(record)
