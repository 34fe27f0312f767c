"""Runs cells in parallel, skipping finished ones and continuing the interrupted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from nemo_uecr.stopping import StopRequest
from nemo_uecr.study.cells import Cell
from nemo_uecr.study.workers import work_on
from nemo_uecr.telemetry.run_folder import RunFolder, read_run

#: Trains one cell, in a worker process; returns an error line, or None.
Work = Callable[[Cell], str | None]


def finished_run(folder: Path) -> RunFolder | None:
    """The run of a folder that holds its last step and last evaluation; None where it does not."""
    if not (folder / "provenance.json").is_file():
        return None
    run = read_run(folder)
    return run if run.complete else None


def finished(folder: Path) -> bool:
    """Whether a run folder holds a run with its last step and last evaluation."""
    return finished_run(folder) is not None


def run_cells(
    cells: Sequence[Cell],
    work: Work,
    *,
    processes: int,
    stop: StopRequest,
    report: Callable[[Cell, str | None, int, int], None],
) -> list[tuple[Cell, str]]:
    """Run every cell that is not finished; one that fails does not stop the others.

    Args:
        cells: the grid.
        work: trains one cell; must be importable, because it runs in other processes.
        processes: cells at once.
        stop: when it is asked, the runs under way save and end.
        report: called with the cell, its error, and how many have ended of how many.

    Returns:
        The cells that failed, with their errors.

    Raises:
        RunStopped: somebody asked to stop.
        RunFolderError: a worker process died.
    """
    waiting = [cell for cell in cells if not finished(cell.folder)]
    ended = list[tuple[Cell, str | None]]()

    def told(cell: Cell, error: str | None) -> None:
        ended.append((cell, error))
        report(cell, error, len(ended), len(waiting))

    work_on(work, waiting, processes=processes, stop=stop, report=told)
    return [(cell, error) for cell, error in ended if error is not None]
