"""Reads a run folder: finished, still in progress, or stopped by an error.

A folder without its first files is refused in one line. What a run has simply not written yet (a later
step, the final evaluation, the last half of a line) is left out, and a note on the page says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_uecr.config.written import read_written
from nemo_uecr.data.json_text import decoded, read_own_object
from nemo_uecr.errors import RunFolderError

FIRST_FILES = ("config.yaml", "origins.json", "provenance.json", "tolerances.json")

#: Numbers that a file of a run may hold: the distance of two of them, and its square, is a number still.
LARGEST = 1e100
MOST_STEPS = 10**15

Record = dict[str, Any]


@dataclass(frozen=True)
class BatchFiles:
    """One saved batch: its tensors and the texts of its tokens."""

    step: int
    tensors: Path
    texts: Path


@dataclass(frozen=True)
class RunFolder:
    """What one run has written so far.

    Attributes:
        path: the folder.
        label: its name on the page, unique among the runs shown.
        config: resolved configuration, nested.
        origins: where each dotted key came from.
        provenance: versions, seeds, hashes, objective.
        tolerances: declared before the first step.
        steps: one record of metrics a step, in step order, each with ``step``.
        evaluations: one record an evaluation, in step order.
        batches: saved batches in step order.
        failure: what stopped the run, if an error did.
        notes: what is missing or incomplete, in sentences.
    """

    path: Path
    label: str
    config: Record
    origins: dict[str, str]
    provenance: Record
    tolerances: dict[str, float]
    steps: list[Record]
    evaluations: list[Record]
    batches: list[BatchFiles]
    failure: Record | None
    notes: tuple[str, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.config["method"]["name"])

    @property
    def planned_steps(self) -> int:
        """Training steps that the configuration asks for."""
        return int(self.config["train"]["steps"])

    @property
    def last_step(self) -> int:
        """The last step with metrics; 0 before the first."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def complete(self) -> bool:
        """True when every step, and the evaluation that follows the last one, is there."""
        if self.failure is not None or self.last_step < self.planned_steps:
            return False
        evaluated = bool(self.config.get("evaluation", {}).get("benchmarks"))
        return not evaluated or (bool(self.evaluations) and self.evaluations[-1]["step"] >= self.planned_steps)

    def has(self, metric: str) -> bool:
        """True when at least one step has ``metric``."""
        return any(metric in record for record in self.steps)

    def values(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of ``metric``, where the run has it."""
        pairs = [(record["step"], record[metric]) for record in self.steps if metric in record]
        return [step for step, _ in pairs], [value for _, value in pairs]


def read_runs(paths: list[Path]) -> list[RunFolder]:
    """Read the folders and give each a label that no other has.

    Raises:
        RunFolderError: If one is no run folder or holds a file that cannot be read.
        DataError: If a file of it is no JSON object.
    """
    runs = [read_run(path) for path in paths]
    return [replace(run, label=label) for run, label in zip(runs, _labels(runs), strict=True)]


def read_run(path: Path) -> RunFolder:
    """Read one run folder.

    Raises:
        RunFolderError: If it is no run folder or holds a file that cannot be read.
        DataError: If a file of it is no JSON object.
    """
    if not path.is_dir():
        raise RunFolderError(f"{path} is no folder; expected the run folder that `nemo-uecr train` wrote")
    for name in FIRST_FILES:
        if not (path / name).is_file():
            raise RunFolderError(
                f"{path} has no {name}; expected the run folder that `nemo-uecr train` wrote. Give that folder"
            )
    notes: list[str] = []
    failure = path / "failure" / "failure.json"
    return RunFolder(
        path=path,
        label=path.resolve().name,
        config=_read_config(path / "config.yaml"),
        origins=read_own_object(path / "origins.json"),
        provenance=read_own_object(path / "provenance.json"),
        tolerances=_read_tolerances(path / "tolerances.json"),
        steps=_read_lines(path / "metrics.jsonl", _is_step, notes),
        evaluations=_read_lines(path / "evaluation.jsonl", _is_evaluation, notes),
        batches=list(_find_batches(path / "batches", notes)),
        failure=read_own_object(failure) if failure.is_file() else None,
        notes=tuple(notes),
    )


def read_samples(run: RunFolder, step: int) -> list[Record]:
    """The evaluated samples of one evaluation, or none when that file is missing.

    Raises:
        RunFolderError: If one of them does not say of which problem it is and what the verdict was.
    """
    path = run.path / "evaluations" / f"step-{step:06d}.jsonl"
    samples = list(_parse_lines(path, []))
    for number, sample in enumerate(samples, start=1):
        if not all(isinstance(sample.get(key), str) for key in ("benchmark", "problem", "verdict")):
            raise RunFolderError(f"{path} line {number} is no sample; expected benchmark, problem and verdict")
    return samples


def _labels(runs: list[RunFolder]) -> list[str]:
    resolved = [run.path.resolve() for run in runs]
    if len(set(resolved)) < len(resolved):
        raise RunFolderError(f"run folder {_first_repeat(resolved)} is given twice; expected each run once")
    longest = max(len(path.parts) for path in resolved)
    for depth in range(1, longest + 1):
        labels = ["/".join(path.parts[-depth:]) for path in resolved]
        if len(set(labels)) == len(labels):
            return labels
    raise AssertionError("distinct absolute paths have distinct parts")


def _first_repeat(paths: list[Path]) -> Path:
    return next(path for index, path in enumerate(paths) if path in paths[:index])


def _read_config(path: Path) -> Record:
    config = read_written(path)
    for section, key, kind, words in (("method", "name", str, "a text"), ("train", "steps", int, "a whole number")):
        found = config.get(section)
        if not isinstance(found, dict) or key not in found:
            raise RunFolderError(f"{path} has no {section}.{key}; expected the resolved configuration of a run")
        if not isinstance(found[key], kind):
            raise RunFolderError(f"{path}: {section}.{key} is {found[key]!r:.60}; expected {words}")
    if not isinstance(config.get("evaluation", {}), dict):
        raise RunFolderError(f"{path}: evaluation is {config['evaluation']!r:.60}; expected a section")
    return config


def _read_tolerances(path: Path) -> dict[str, float]:
    tolerances = read_own_object(path)
    for name, value in tolerances.items():
        if not _is_number(value):
            raise RunFolderError(f"{path}: {name} is {value!r:.60}; expected a number")
    return tolerances


def _read_lines(path: Path, is_whole: Callable[[Record], bool], notes: list[str]) -> list[Record]:
    """Records of a JSONL file by step; of a step written twice (a resumed run) the later one."""
    by_step: dict[int, Record] = {}
    for number, record in enumerate(_parse_lines(path, notes), start=1):
        step = record.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= MOST_STEPS:
            raise RunFolderError(f"{path} line {number} has no integer step; expected the file as the run wrote it")
        if not is_whole(record):
            raise RunFolderError(f"{path} line {number} lacks fields or numbers; expected the file as the run wrote it")
        by_step[record["step"]] = record
    return [by_step[step] for step in sorted(by_step)]


def _is_step(record: Record) -> bool:
    """A step with metrics, all of them numbers; a run writes no step without any."""
    return len(record) > 1 and all(_is_number(value) for value in record.values())


def _is_evaluation(record: Record) -> bool:
    sets = record.get("sets")
    if not isinstance(sets, dict) or not all(_is_number(record.get(name)) for name in ("samples", "seconds")):
        return False
    return all(map(_is_estimate, [record.get("average"), *sets.values()]))


def _is_estimate(found: object) -> bool:
    """A share with the ends of its interval; older runs have no pass@k beside them."""
    if not isinstance(found, dict):
        return False
    return all(_is_number(found.get(key)) for key in ("avg", "low", "high")) and _is_number(found.get("pass", 0))


def _is_number(value: object) -> bool:
    """A number that a chart has a place for: JSON writes integers of any length, and 1e999."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _parse_lines(path: Path, notes: list[str]) -> Iterator[Record]:
    if not path.is_file():
        return
    raw = path.read_bytes()
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = decoded(line)
        except ValueError as error:
            if number == len(lines):  # no newline after it: the run is writing, or was killed while writing
                notes.append(f"The last line of {path.name} is half-written and was left out.")
                return
            raise RunFolderError(
                f"{path} line {number} is no valid JSON ({error}); expected one object a line"
            ) from error
        if not isinstance(record, dict):
            raise RunFolderError(f"{path} line {number} holds a {type(record).__name__}; expected a JSON object")
        yield record


def _find_batches(folder: Path, notes: list[str]) -> Iterator[BatchFiles]:
    for tensors in sorted(folder.glob("step-*.safetensors")):
        found = re.fullmatch(r"step-(\d+)", tensors.stem)
        if found is None:
            continue
        texts = tensors.with_suffix(".json")
        if texts.is_file():
            yield BatchFiles(int(found.group(1)), tensors, texts)
        else:
            notes.append(f"Batch {tensors.name} has no {texts.name} beside it and is left out of the credit map.")
