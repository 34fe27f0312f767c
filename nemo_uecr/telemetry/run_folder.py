"""A run folder: finished, still in progress, or stopped by an error.

What a run has not written yet (a later step, the final evaluation, the last half of a line) is left out, with a note.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_uecr.config.load import dump_config, own_sections, read_written
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import read_object, replace_file
from nemo_uecr.telemetry.sinks import EVALUATIONS, STEPS, Record, read_records

FIRST_FILES = ("config.yaml", "origins.json", "provenance.json")


@dataclass(frozen=True)
class RunFolder:
    """What one run has written so far; steps, evaluations and batches in step order."""

    path: Path
    label: str  # its name among the runs shown, unique
    config: Any  # resolved, nested
    origins: dict[str, str]  # where each dotted key came from
    provenance: Record
    steps: list[Record]  # each with ``step`` and its metrics
    evaluations: list[Record]
    batches: dict[int, Path]  # the table of each saved batch
    failure: Record | None  # what stopped the run, if an error did
    notes: tuple[str, ...]  # warnings at the start, and what is missing or incomplete

    @property
    def _ours(self) -> dict[str, Any]:
        return own_sections(self.config)

    @property
    def method(self) -> str:
        return str(self._ours["method"]["name"])

    @property
    def tolerances(self) -> dict[str, float]:
        return dict(self._ours["tolerances"])

    @property
    def batches_to_read(self) -> dict[int, Path]:
        """The saved batches for who needs them all: of a version before 0.4.0 one, which the reader refuses."""
        return dict(enumerate(sorted((self.path / "batches").glob("step-*.safetensors"))[:1])) or self.batches

    @property
    def planned_steps(self) -> int:
        steps = self.config["grpo"]["max_num_steps"] if "grpo" in self.config else self.config["train"]["steps"]
        return int(steps)

    @property
    def last_step(self) -> int:
        """The last step with metrics; 0 before the first."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def complete(self) -> bool:
        """True when every step, and the evaluation that follows the last one, is there."""
        if self.failure is not None or self.last_step < self.planned_steps:
            return False
        evaluated = bool((self._ours.get("evaluation") or {}).get("benchmarks"))
        return not evaluated or (bool(self.evaluations) and self.evaluations[-1]["step"] >= self.planned_steps)

    @property
    def wall_seconds(self) -> float:
        """Seconds of the steps, with their evaluations, and of the evaluation before them."""
        before = sum(float(record["seconds"]) for record in self.evaluations if record["step"] == 0)
        return sum(self.values("time/step_s")[1]) + before

    def has(self, metric: str) -> bool:
        """True when at least one step has ``metric``."""
        return any(metric in record for record in self.steps)

    def values(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of ``metric``, where the run has it."""
        pairs = [(record["step"], record[metric]) for record in self.steps if metric in record]
        return [step for step, _ in pairs], [value for _, value in pairs]


def write_first_files(folder: Path, config: Config, origins: Mapping[str, str], provenance: Mapping[str, Any]) -> None:
    """What is written before the first step; the configuration last, because a folder that has it holds a run."""
    for name, record in {"origins": origins, "provenance": provenance}.items():
        replace_file(folder / f"{name}.json", json.dumps(record, indent=1).encode())
    replace_file(folder / "config.yaml", dump_config(config).encode())


def read_runs(paths: list[Path]) -> list[RunFolder]:
    """Read each folder once and give it a label that no other has: as much of its path as that takes."""
    places = {path.resolve(): path for path in paths}
    runs = [read_run(path) for path in places.values()]
    for depth in range(1, max((len(place.parts) for place in places), default=0) + 1):
        labels = ["/".join(place.parts[-depth:]) for place in places]
        if len(set(labels)) == len(labels):
            return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
    return runs


def read_run(path: Path) -> RunFolder:
    """Read one run folder."""
    for name in FIRST_FILES:
        if not (path / name).is_file():
            raise RunFolderError(f"{path} has no {name}; expected the run folder that `nemo-uecr train` wrote")
    provenance = read_object(path / "provenance.json")
    notes: list[str] = list(provenance.get("warnings", ()))
    failure = path / "failure" / "failure.json"
    return RunFolder(
        path=path,
        label=path.resolve().name,
        config=read_written(path / "config.yaml"),
        origins=read_object(path / "origins.json"),
        provenance=provenance,
        steps=_by_step(path / STEPS, notes),
        evaluations=_by_step(path / EVALUATIONS, notes),
        batches=dict(_find_batches(path / "batches", notes)),
        failure=read_object(failure) if failure.is_file() else None,
        notes=tuple(notes),
    )


def _by_step(path: Path, notes: list[str]) -> list[Record]:
    records, cut_off = read_records(path)
    if cut_off:
        notes.append(f"The last line of {path.name} is half-written and was left out.")
    by_step = {record["step"]: record for record in records}
    return [by_step[step] for step in sorted(by_step)]


def _find_batches(folder: Path, notes: list[str]) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.glob("step-*.parquet")):
        yield int(path.stem.removeprefix("step-")), path
    if old := len([*folder.glob("step-*.safetensors")]):
        notes.append(f"{old} saved batches are in a format of version 0.3.0 or earlier: no credit map shows them.")


def worst_residuals(path: Path) -> dict[str, float]:
    """Largest residual of every identity over the steps of a run, by metric name."""
    worst: dict[str, float] = {}
    for record in read_records(path / STEPS)[0]:
        for name, value in record.items():
            if name.startswith(("identity/", "policy/first_ratio_")):
                worst[name] = max(worst.get(name, 0.0), value)
    return worst
