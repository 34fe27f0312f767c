"""What the runs of a study measured, read from their folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nemo_uecr.study.cells import Cell
from nemo_uecr.study.run_checks import check_run
from nemo_uecr.study.runner import finished_run
from nemo_uecr.telemetry.run_folder import RunFolder
from nemo_uecr.telemetry.sinks import Record

#: Phases of a step whose seconds are compared between arms.
PHASES = ("rollout", "verify", "score_student", "score_teacher", "score_reference", "advantage", "update")


@dataclass(frozen=True)
class RunResult:
    """One finished run; accuracies in percent.

    Attributes:
        cell: which run.
        initial: average of the sets before training.
        final: average of the sets after the last step.
        initial_sets: before training, by set.
        sets: after the last step, by set.
        curve: (step, average) of every evaluation.
        degenerate_start: share of groups with equal task rewards in the first step.
        degenerate: the same, mean over all steps.
        seconds: mean seconds of each phase of a step.
        step_seconds: mean seconds of a step without evaluation and saving.
        rewards: mean task reward of the batch, in percent, by training step from the first.
        samples: responses a problem of the evaluations, k of avg@k.
    """

    cell: Cell
    initial: float
    final: float
    initial_sets: dict[str, float]
    sets: dict[str, float]
    curve: tuple[tuple[int, float], ...]
    degenerate_start: float
    degenerate: float
    seconds: dict[str, float]
    step_seconds: float
    rewards: tuple[float, ...]
    samples: int


def read_results(cells: Iterable[Cell], *, initial: bool) -> list[RunResult]:
    """Results of the cells that are finished.

    The initial student of a pair is the same for all arms, and so is its evaluation, to the last token; where a run
    was told to leave it out (`evaluation.at_start=false`) the one of another run of the pair stands in.

    Args:
        cells: what to read.
        initial: whether the initial student is needed; a pair whose evaluation before training is not there yet is
            left out. Without it a run's first evaluation stands there, whenever it was.

    Raises:
        RunFolderError: a folder holds a run of another study file, or an evaluation that is no average of its sets.
    """
    runs = [(cell, check_run(cell, run)) for cell in cells if (run := finished_run(cell.folder)) is not None]
    before = {cell.pair: run.evaluations[0] for cell, run in runs if run.evaluations[0]["step"] == 0}
    if initial:
        runs = [(cell, run) for cell, run in runs if cell.pair in before]
    return [_result(cell, run, before.get(cell.pair, run.evaluations[0])) for cell, run in runs]


def wall_seconds(cells: Iterable[Cell]) -> list[float]:
    """Seconds of each finished run, steps and evaluations together."""
    return [_seconds(run) for cell in cells if (run := finished_run(cell.folder)) is not None]


def _seconds(run: RunFolder) -> float:
    """Evaluations but the one before training are part of their step."""
    before = sum(float(record["seconds"]) for record in run.evaluations if record["step"] == 0)
    return sum(run.values("time/step_s")[1]) + before


def _result(cell: Cell, run: RunFolder, first: Record) -> RunResult:
    evaluations = {record["step"]: record for record in (first, *run.evaluations)}
    curve = tuple((step, 100.0 * evaluations[step]["average"]["avg"]) for step in sorted(evaluations))
    degenerate = run.values("group/degenerate_share")[1]
    seconds = {phase: _mean(run.values(f"time/{phase}_s")[1]) for phase in PHASES if run.has(f"time/{phase}_s")}
    return RunResult(
        cell=cell,
        initial=curve[0][1],
        final=curve[-1][1],
        initial_sets=_by_set(first),
        sets=_by_set(run.evaluations[-1]),
        curve=curve,
        degenerate_start=degenerate[0],
        degenerate=_mean(degenerate),
        seconds=seconds,
        step_seconds=sum(seconds.values()),
        rewards=tuple(100.0 * value for value in run.values("reward/task_mean")[1]),
        samples=int(run.evaluations[-1]["samples"]),
    )


def _by_set(evaluation: Record) -> dict[str, float]:
    return {name: 100.0 * found["avg"] for name, found in evaluation["sets"].items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
