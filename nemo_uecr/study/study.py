"""One study from its file to its tables: task, learning rates, runs, summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_uecr.data.atomic import replace_file
from nemo_uecr.errors import RunFolderError
from nemo_uecr.study.cells import Cell, selection_cells, table_cells
from nemo_uecr.study.figures import draw_curves, draw_differences
from nemo_uecr.study.results import RunResult, read_results
from nemo_uecr.study.runner import Work, finished, run_cells
from nemo_uecr.study.schema import StudyConfig
from nemo_uecr.study.selection import Choice, choose_rates, rates_of
from nemo_uecr.study.summary import costs, curves, table_summaries
from nemo_uecr.study.tables import cost_markdown, notes_markdown, selection_markdown, table_markdown
from nemo_uecr.study.task import TaskFiles, model_jobs, prepare_task

#: The arm whose step the others' cost is a ratio to.
COST_BASELINE = "grpo"
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Forecast:
    """What is still to be done before anything starts."""

    models: int
    selection_runs: int
    table_runs: int
    run_seconds: float
    measured: bool
    processes: int

    @property
    def hours(self) -> float:
        """Wall hours of the runs, if every process has a core of its own."""
        return (self.selection_runs + self.table_runs) * self.run_seconds / self.processes / SECONDS_PER_HOUR

    def lines(self) -> list[str]:
        """For people."""
        source = "mean of the finished runs" if self.measured else "expected_run_seconds of the study file"
        return [
            f"to do: {self.models} models, {self.selection_runs} runs to choose learning rates, {self.table_runs} runs "
            "for the tables",
            f"{self.run_seconds:.0f} s a run ({source}), {self.processes} at once: about {self.hours:.2f} hours",
        ]


def forecast(study: StudyConfig) -> Forecast:
    """Count what is missing."""
    root, files = Path(study.folder), task_files(study)
    selection = selection_cells(study, root, files)
    tables = table_cells(study, root, files, dict.fromkeys(_tuned(study), study.selection.learning_rates[0]))
    jobs = model_jobs(files.root, study.task, students=study.pair_count, selection=study.selection.pairs)
    seconds = [_run_seconds(result) for result in read_results([*selection, *tables])]
    return Forecast(
        models=sum(not files.model(job.name).is_dir() for job in jobs),
        selection_runs=sum(not finished(cell.folder) for cell in selection),
        table_runs=sum(not finished(cell.folder) for cell in tables),
        run_seconds=sum(seconds) / len(seconds) if seconds else study.expected_run_seconds,
        measured=bool(seconds),
        processes=study.processes,
    )


def run_study(study: StudyConfig, work: Work, *, report: Callable[[str], None]) -> Path:
    """Do what is missing, then write tables and figures; returns the summary's path.

    Args:
        study: the study.
        work: trains one cell in a worker process.
        report: called with each line of progress.

    Raises:
        RunFolderError: a run failed; what is finished is kept, and the same command continues.
    """
    root = Path(study.folder)
    files = prepare_task(
        task_files(study).root,
        study.task,
        students=study.pair_count,
        selection=study.selection.pairs,
        processes=study.processes,
        report=report,
    )
    candidates = selection_cells(study, root, files)
    _run(study, "selection", candidates, work, report)
    choices = choose_rates(study, read_results(candidates))
    cells = table_cells(study, root, files, rates_of(choices))
    _run(study, "tables", cells, work, report)
    return write_summary(study, choices, read_results(cells))


def write_summary(study: StudyConfig, choices: list[Choice], results: list[RunResult]) -> Path:
    """Write results.json, the figures and summary.md from the finished runs."""
    root = Path(study.folder)
    summaries = table_summaries(study, results)
    cost = costs(study, results, COST_BASELINE)
    main = next(iter(study.tables.values()))
    lines = {
        variant: {arm: found for arm in main.arms if (found := curves(study, results, variant, arm))}
        for variant in study.variants
    }
    content = {
        "study": study.model_dump(mode="json"),
        "selection": [asdict(choice) for choice in choices],
        "runs": [asdict(result) | {"folder": str(result.cell.folder)} for result in results],
        "tables": [asdict(summary) for summary in summaries],
        "costs": [asdict(one) for one in cost],
    }
    replace_file(root / "results.json", json.dumps(content, indent=1, default=str).encode())
    parts = [notes_markdown()]
    parts += [table_markdown(summary, confidence=study.confidence) for summary in summaries]
    if summaries:
        draw_differences(root / "figures", summaries)
        draw_curves(root / "figures", {variant: arms for variant, arms in lines.items() if arms})
        parts += ["![differences](figures/differences.png)\n", "![curves](figures/curves.png)\n"]
    parts += [selection_markdown(choices), cost_markdown(cost, COST_BASELINE)]
    replace_file(root / "summary.md", "\n".join(parts).encode())
    return root / "summary.md"


def task_files(study: StudyConfig) -> TaskFiles:
    """Where the study's problems and models lie."""
    return TaskFiles((Path(study.folder) / "task").resolve())


def _run(study: StudyConfig, stage: str, cells: list[Cell], work: Work, report: Callable[[str], None]) -> None:
    def told(cell: Cell, error: str | None, number: int, of: int, seconds: float) -> None:
        left = seconds / number * (of - number) / 60
        outcome = "done" if error is None else f"FAILED: {error}"
        name = f"{cell.variant} {cell.arm} pair {cell.pair} lr {cell.learning_rate:g}"
        report(f"{stage} {number}/{of}  {name}  {outcome}  {left:.0f} min left")

    outcome = run_cells(cells, work, processes=study.processes, report=told)
    if outcome.failures:
        cell, error = outcome.failures[0]
        raise RunFolderError(
            f"{len(outcome.failures)} of {len(cells)} runs failed, the first {cell.folder}: {error}; finished runs are "
            "kept, run the same command again once the cause is gone"
        )


def _tuned(study: StudyConfig) -> list[tuple[str, str]]:
    return [(variant, arm) for variant in study.variants for arm in study.arms]


def _run_seconds(result: RunResult) -> float:
    record = json.loads((result.cell.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    return float(record["time/step_s"]) * int(record["step"])
