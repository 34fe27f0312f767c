"""A study from its file to its tables: problems and models, learning rates, runs, summary.

Everything on disk is complete or absent, so that an interrupted study continues with what is missing.
"""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.study import grid, results
from benchmarks.study.grid import GridCell
from benchmarks.study.schema import StudyConfig
from benchmarks.study.summary import write_summary
from nemo_uecr.cli.train import train_local
from nemo_uecr.demo.supervised import TEACHING, ModelJob, teach_model
from nemo_uecr.demo.task import write_problems
from nemo_uecr.demo.workers import work_on
from nemo_uecr.errors import RunFolderError, UecrError
from nemo_uecr.files import new_folder, read_object, replace_file
from nemo_uecr.local.provenance import of_other_code, package_source
from nemo_uecr.stopping import StopRequest, listening
from nemo_uecr.telemetry.run_folder import read_run

Report = Callable[[str], None]


def forecast(study: StudyConfig) -> list[str]:
    """Lines on the remaining work and its duration, given one core per process.

    hours = (models * seconds per model + runs * seconds per run) / processes / 3600
    """
    cells, folders = grid.every_cell(study), [grid.model_folder(study, name) for name in grid.every_model(study)]
    taught = [read_object(folder / TEACHING)["seconds"] for folder in folders if folder.is_dir()]
    runs_of = [grid.finished_run(cell.folder) for cell in cells]
    ran = [run.wall_seconds for run in runs_of if run]
    models, runs = len(folders) - len(taught), len(cells) - len(ran)
    selection = sum(cell.selection and not run for cell, run in zip(cells, runs_of, strict=True))
    model_seconds = sum(taught) / len(taught) if taught else study.expected_model_seconds
    run_seconds = sum(ran) / len(ran) if ran else study.expected_run_seconds
    hours = (models * model_seconds + runs * run_seconds) / study.processes / 3600
    idle = ", ".join(arm for arm in study.arms if not any(arm in table.arms for table in study.tables.values()))
    of_models = "mean of the finished models" if taught else "expected_model_seconds of the study file"
    of_runs = "mean of the finished runs" if ran else "expected_run_seconds of the study file"
    return [
        f"to do: {models} models, {selection} runs to choose learning rates, {runs - selection} runs for the tables",
        f"{model_seconds:.0f} s per model ({of_models}), {run_seconds:.0f} s per run ({of_runs}), "
        f"{study.processes} at once: about {hours:.2f} hours",
        *([f"in no table, but run: {idle}; write arms: {{_override_: true, ...}} to inherit none"] if idle else []),
        *other_code(study),
    ]


def other_code(study: StudyConfig) -> list[str]:
    """A line on runs made by another version of the package's code, if there are any."""
    code = package_source()[0]["package_sha256"]
    kept = (each for each in grid.every_cell(study) if any((each.folder / "checkpoints").glob("step-*")))
    old = Counter(cell.arm for cell in kept if of_other_code(cell.folder, code))
    named = ", ".join(f"{count} of {arm}" for arm, count in old.items())
    line = f"runs made by other code of the package: {named}; to run an arm again, delete {study.folder}/*/*/ARM"
    return [line] if old else []


def run_study(study: StudyConfig, *, stop: StopRequest, report: Report) -> Path:
    """Run what is missing, then write tables and figures; returns the summary's path.

    On a `stop` request the runs in progress save and end. `report` receives each line of progress. After a failed run
    or a stop the same command continues.
    """
    _prepare_task(study, stop, report)
    _run(study, "selection", grid.selection_cells(study), stop, report)
    _run(study, "tables", grid.table_cells(study, results.rates_of(results.choose_rates(study))), stop, report)
    return summarise(study)


def summarise(study: StudyConfig) -> Path:
    """Rebuild tables and figures from the finished runs; returns the summary's path."""
    return write_summary(study, notes=other_code(study))


def _prepare_task(study: StudyConfig, stop: StopRequest, report: Report) -> None:
    root, task = grid.task_folder(study), study.task
    described = root / "task.json"
    if described.is_file() and read_object(described) != task.model_dump(mode="json"):
        raise RunFolderError(
            f"{described} describes another task than the study file; choose another folder, or restore the task"
        )
    replace_file(described, task.model_dump_json(indent=1).encode())
    sets = {
        path: [level] * count
        for kind, count in (("bench", task.bench_problems), ("validation", task.validation_problems))
        for level, path in enumerate(grid.held_out(study, kind).values(), start=1)
    }
    problems = root / "problems"
    if not problems.is_dir():
        with new_folder(problems) as folder:
            inside = {folder / path.name: levels for path, levels in sets.items()}
            rng = random.Random(f"{task.seed} problems")
            write_problems(rng, inside, folder / "train.jsonl", task.train_levels, task.train_problems)
            halve(folder / "train.jsonl")
        report("problems: ready")
    jobs = []
    for name, config in grid.every_model(study).items():
        if not grid.model_folder(study, name).is_dir():
            rng = random.Random(f"{task.seed} {name}")
            jobs.append(ModelJob(grid.model_folder(study, name), config, rng.randrange(2**31), rng, tuple(sets)))
    if jobs:
        report(f"teaching {len(jobs)} models, {study.processes} at once")
    for number, (job, loss) in enumerate(work_on(teach_model, jobs, processes=study.processes, stop=stop), start=1):
        report(f"model {number} of {len(jobs)}, {job.folder.name}: last loss {loss:.3f} nats per token")


def halve(path: Path) -> None:
    """Give every second problem to the other half, by which an arm with two teachers is routed."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    halved = (row | {grid.HALF: grid.HALVES[place % 2]} for place, row in enumerate(rows))
    path.write_text("".join(json.dumps(row) + "\n" for row in halved), encoding="utf-8")


def _run(study: StudyConfig, stage: str, cells: Sequence[GridCell], stop: StopRequest, report: Report) -> None:
    """Run every cell that is not finished; one that fails does not stop the others."""
    # Finished runs of another study are refused before others train.
    ran = {cell: run.wall_seconds for cell, run in grid.finished_runs(study, cells)}
    waiting = [cell for cell in cells if cell not in ran]
    failures = list[tuple[GridCell, str]]()
    work = partial(train_cell, study.config)
    for number, (cell, error) in enumerate(work_on(work, waiting, processes=study.processes, stop=stop), start=1):
        if error is None:
            ran[cell] = read_run(cell.folder).wall_seconds
        else:
            failures.append((cell, error))
        outcome = "done" if error is None else f"FAILED: {error}"
        name = f"{cell.variant} {cell.arm} pair {cell.pair} lr {cell.learning_rate:g}"
        left = time_left([*ran.values()], len(cells) - len(ran) - len(failures), study.processes)
        report(f"{stage} {number}/{len(waiting)}  {name}  {outcome}{left}")
    if failures:
        cell, error = failures[0]
        raise RunFolderError(
            f"{len(failures)} of {len(cells)} runs failed, the first {cell.folder}: {error}; finished runs are "
            "kept, run the same command again once the cause is gone"
        )


def train_cell(config: str, cell: GridCell) -> str | None:
    """Train one cell, continuing it where it was begun; returns the error that a user should read, or None."""
    logging.getLogger("nemo_uecr").setLevel(logging.WARNING)
    try:
        with listening() as stop:
            train_local(config, cell.overrides, resume=(cell.folder / "config.yaml").is_file(), stop=stop)
    except UecrError as error:
        return " ".join(str(error).split())
    return None


def time_left(ran: Sequence[float], runs: int, processes: int) -> str:
    """The end of a progress line: runs * mean of ran / min(processes, runs); runs in progress count in full."""
    if not ran or not runs:
        return ""
    seconds = sum(ran) / len(ran) * runs / min(processes, runs)
    return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"
