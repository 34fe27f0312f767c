"""Whether a finished run is the one that a study asks for, and its evaluations are what they say."""

from __future__ import annotations

import math
from typing import Any

from nemo_uecr.errors import RunFolderError
from nemo_uecr.study.cells import Cell
from nemo_uecr.telemetry.run_folder import RunFolder
from nemo_uecr.telemetry.sinks import Record

#: Paths change when a study is moved; the name of what they lead to does not decide a number.
PATHS = ("run.folder", "student.model_name", "teacher.model_name", "data.train")
BENCHMARKS = "evaluation.benchmarks."
OFF = ("off", "false")


def check_run(cell: Cell, run: RunFolder) -> RunFolder:
    """The run, if it was trained as the cell says: a changed study file must not take old runs for its own.

    Raises:
        RunFolderError: a setting or a set is another one, or an average is no mean of its sets.
    """
    stated = dict(word.partition("=")[::2] for word in cell.overrides)
    for key, written in stated.items():
        if key in PATHS or key.startswith(BENCHMARKS):
            continue
        found = _value(run.config, key)
        if not _same(found, written):
            raise RunFolderError(
                f"{cell.folder} was trained with {key}={found}, this study asks for {written}; choose another study "
                "folder, or put the study file back"
            )
    sets = {key.removeprefix(BENCHMARKS) for key in stated if key.startswith(BENCHMARKS)}
    for record in run.evaluations:
        _check_evaluation(cell, record, sets)
    return run


def _value(config: Any, key: str) -> object:
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config


def _same(found: object, written: str) -> bool:
    if isinstance(found, bool):
        return found == (written.lower() not in OFF)
    if isinstance(found, (int, float)):
        try:
            return float(written) == found
        except ValueError:
            return False
    return str(found) == written


def _check_evaluation(cell: Cell, record: Record, sets: set[str]) -> None:
    found = {name: each["avg"] for name, each in record["sets"].items()}
    average = record["average"]["avg"]
    sound = set(found) == sets and all(0 <= value <= 1 for value in found.values())
    if not (sound and math.isclose(average, sum(found.values()) / len(found), rel_tol=0, abs_tol=1e-9)):
        raise RunFolderError(
            f"{cell.folder}: the evaluation of step {record['step']} has average {average} over {', '.join(found)}; "
            f"expected the mean of {', '.join(sorted(sets))}, each from 0 to 1. Remove the run and repeat the study"
        )
