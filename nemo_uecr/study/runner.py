"""Runs cells in parallel, skipping finished ones and continuing the interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from nemo_uecr.report.run_folder import read_run
from nemo_uecr.study.cells import Cell

#: Trains one cell, in a worker process; returns an error line, or None.
Work = Callable[[Cell], str | None]


@dataclass(frozen=True)
class Outcome:
    """What became of the cells that were run now."""

    done: int
    seconds: float
    failures: tuple[tuple[Cell, str], ...]


def finished(folder: Path) -> bool:
    """Whether a run folder holds a run with its last step and last evaluation."""
    return (folder / "provenance.json").is_file() and read_run(folder).complete


def run_cells(
    cells: Sequence[Cell], work: Work, *, processes: int, report: Callable[[Cell, str | None, int, int, float], None]
) -> Outcome:
    """Run every cell that is not finished; one that fails does not stop the others.

    Args:
        cells: the grid.
        work: trains one cell; must be importable, because it runs in other processes.
        processes: cells at once.
        report: called with the cell, its error, how many are done of how many, and the seconds since the start.
    """
    waiting = [cell for cell in cells if not finished(cell.folder)]
    started = time.monotonic()
    failures = []
    with ProcessPoolExecutor(max(1, min(processes, len(waiting))), mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(work, cell): cell for cell in waiting}
        for number, future in enumerate(as_completed(futures), start=1):
            cell, error = futures[future], future.result()
            if error is not None:
                failures.append((cell, error))
            report(cell, error, number, len(waiting), time.monotonic() - started)
    return Outcome(len(waiting) - len(failures), time.monotonic() - started, tuple(failures))
