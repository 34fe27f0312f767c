"""One study from its file to its tables: task, learning rates, runs, summary."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.errors import RunFolderError
from nemo_uecr.stopping import StopRequest
from nemo_uecr.study.cells import Cell, every_cell, selection_cells, table_cells
from nemo_uecr.study.outputs import write_outputs
from nemo_uecr.study.overrides import check_overrides
from nemo_uecr.study.progress import ProgressTable, time_left
from nemo_uecr.study.results import read_results, wall_seconds
from nemo_uecr.study.runner import Work, finished, run_cells
from nemo_uecr.study.schema import StudyConfig
from nemo_uecr.study.selection import choose_rates, rates_of
from nemo_uecr.study.task import model_jobs, prepare_task, task_files, teaching_seconds

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Forecast:
    """What is still to be done before anything starts."""

    models: int
    selection_runs: int
    table_runs: int
    model_seconds: float
    models_measured: bool
    run_seconds: float
    runs_measured: bool
    processes: int

    @property
    def hours(self) -> float:
        """Wall hours of models and runs, if every process has a core of its own."""
        seconds = self.models * self.model_seconds + (self.selection_runs + self.table_runs) * self.run_seconds
        return seconds / self.processes / SECONDS_PER_HOUR

    def lines(self) -> list[str]:
        """For people."""
        models = "mean of those taught" if self.models_measured else "expected_model_seconds of the study file"
        runs = "mean of the finished runs" if self.runs_measured else "expected_run_seconds of the study file"
        return [
            f"to do: {self.models} models, {self.selection_runs} runs to choose learning rates, {self.table_runs} runs "
            "for the tables",
            f"{self.model_seconds:.0f} s a model ({models}), {self.run_seconds:.0f} s a run ({runs}), "
            f"{self.processes} at once: about {self.hours:.2f} hours",
        ]


def forecast(study: StudyConfig) -> Forecast:
    """Count what is missing."""
    (selection, tables), files, jobs = every_cell(study), task_files(study), model_jobs(study)
    taught, ran = teaching_seconds(files, jobs), wall_seconds([*selection, *tables])
    return Forecast(
        models=sum(not files.model(job.name).is_dir() for job in jobs),
        selection_runs=sum(not finished(cell.folder) for cell in selection),
        table_runs=sum(not finished(cell.folder) for cell in tables),
        model_seconds=sum(taught) / len(taught) if taught else study.expected_model_seconds,
        models_measured=bool(taught),
        run_seconds=sum(ran) / len(ran) if ran else study.expected_run_seconds,
        runs_measured=bool(ran),
        processes=study.processes,
    )


def run_study(study: StudyConfig, work: Work, *, stop: StopRequest, report: Callable[[str], None]) -> Path:
    """Do what is missing, then write tables and figures; returns the summary's path.

    Args:
        study: the study.
        work: trains one cell in a worker process.
        stop: when it is asked, what is under way saves and ends.
        report: called with each line of progress.

    Raises:
        RunFolderError: a run failed; what is finished is kept, and the same command continues.
        RunStopped: somebody asked to stop; the same command continues.
    """
    prepare_task(study, stop=stop, report=report)
    candidates = selection_cells(study)
    _run(study, "selection", candidates, work, stop, report)
    choices = choose_rates(study, read_results(candidates, initial=False))
    _run(study, "tables", table_cells(study, rates_of(choices)), work, stop, report)
    return summarise(study)


def summarise(study: StudyConfig) -> Path:
    """Tables and figures again from the finished runs, training nothing; returns the summary's path.

    Raises:
        RunFolderError: the runs that choose the learning rates are not all there.
    """
    choices = choose_rates(study, read_results(selection_cells(study), initial=False))
    cells = table_cells(study, rates_of(choices))
    return write_outputs(study, choices, cells, read_results(cells, initial=True))


def check_runs(study: StudyConfig) -> None:
    """Refuse what any run of the study would be refused for, before the first starts.

    Raises:
        ConfigError: an override is faulty, or says what the study says itself.
    """
    selection, tables = every_cell(study)
    check_overrides(study, [*selection, *tables])


def check_folder(study: StudyConfig) -> None:
    """Refuse a folder that cannot be one.

    Raises:
        RunFolderError: there is a file in its place, or in that of a folder above it.
    """
    root = Path(study.folder)
    there = next(path for path in (root, *root.absolute().parents) if os.path.exists(path))
    if not there.is_dir():
        raise RunFolderError(f"{there} is no folder; choose another folder in the study file")


def check_finished(study: StudyConfig) -> None:
    """Refuse finished runs that are not this study's, as far as its learning rates are known, before others start.

    Raises:
        RunFolderError: a run was trained otherwise, or an evaluation is no average of its sets.
    """
    candidates = selection_cells(study)
    results = read_results(candidates, initial=False)
    if len(results) == len(candidates):
        rates = rates_of(choose_rates(study, results))
        read_results(table_cells(study, rates), initial=False)


def _run(
    study: StudyConfig, stage: str, cells: list[Cell], work: Work, stop: StopRequest, report: Callable[[str], None]
) -> None:
    read_results(cells, initial=False)  # finished runs that are not this study's are refused before others train
    table = ProgressTable(Path(study.folder), stage, cells)
    ran = wall_seconds(cells)
    table.write(time_left(ran, len(cells) - len(ran), study.processes))

    def told(cell: Cell, error: str | None, number: int, of: int) -> None:
        if error is None:
            table.add(cell)
            ran.extend(wall_seconds([cell]))
        left = time_left(ran, of - number, study.processes)
        table.write(left)
        outcome = "done" if error is None else f"FAILED: {error}"
        name = f"{cell.variant} {cell.arm} pair {cell.pair} lr {cell.learning_rate:g}"
        report(f"{stage} {number}/{of}  {name}  {outcome}{left}")

    failures = run_cells(cells, work, processes=study.processes, stop=stop, report=told)
    report(f"{stage}: finished runs of all\n{table.text()}".rstrip())
    if failures:
        cell, error = failures[0]
        raise RunFolderError(
            f"{len(failures)} of {len(cells)} runs failed, the first {cell.folder}: {error}; finished runs are "
            "kept, run the same command again once the cause is gone"
        )
