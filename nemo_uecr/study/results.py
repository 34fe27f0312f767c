"""What the runs of a study measured, read from their folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nemo_uecr.report.run_folder import RunFolder, read_run
from nemo_uecr.study.cells import Cell
from nemo_uecr.study.runner import finished

#: Phases of a step whose seconds are compared between arms.
PHASES = ("rollout", "verify", "score_student", "score_teacher", "advantage", "update")


@dataclass(frozen=True)
class RunResult:
    """One finished run; accuracies in percent.

    Attributes:
        cell: which run.
        initial: average of the sets before training.
        final: average of the sets after the last step.
        sets: after the last step, by set.
        curve: (step, average) of every evaluation.
        degenerate_start: share of groups with equal task rewards in the first step.
        degenerate: the same, mean over all steps.
        seconds: mean seconds of each phase of a step.
        step_seconds: mean seconds of a step without evaluation and saving.
        worst_identity: largest budget or decomposition error of all steps; None where the method has neither.
    """

    cell: Cell
    initial: float
    final: float
    sets: dict[str, float]
    curve: tuple[tuple[int, float], ...]
    degenerate_start: float
    degenerate: float
    seconds: dict[str, float]
    step_seconds: float
    worst_identity: float | None


def read_results(cells: Iterable[Cell]) -> list[RunResult]:
    """Results of the cells that are finished."""
    return [_result(cell, read_run(cell.folder)) for cell in cells if finished(cell.folder)]


def _result(cell: Cell, run: RunFolder) -> RunResult:
    curve = tuple((record["step"], 100.0 * record["average"]["avg"]) for record in run.evaluations)
    degenerate = run.values("group/degenerate_share")[1]
    seconds = {phase: _mean(run.values(f"time/{phase}_s")[1]) for phase in PHASES if run.has(f"time/{phase}_s")}
    errors = [value for name in ("budget_error", "decomposition_error") for value in run.values(f"identity/{name}")[1]]
    return RunResult(
        cell=cell,
        initial=curve[0][1],
        final=curve[-1][1],
        sets={name: 100.0 * found["avg"] for name, found in run.evaluations[-1]["sets"].items()},
        curve=curve,
        degenerate_start=degenerate[0],
        degenerate=_mean(degenerate),
        seconds=seconds,
        step_seconds=sum(seconds.values()),
        worst_identity=max(errors, default=None),
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
