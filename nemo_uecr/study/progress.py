"""How far a study is: finished runs by arm and variant, renewed after every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nemo_uecr.files import replace_file
from nemo_uecr.study.cells import Cell
from nemo_uecr.study.runner import finished

NAME = "progress.txt"
SECONDS_PER_MINUTE = 60.0
#: Above this, a remaining time is said in minutes.
MOST_SECONDS = 120.0


def time_left(ran: Sequence[float], runs: int, processes: int) -> str:
    """What is left, for the end of a line: runs * mean of ran / min(processes, runs).

    The seconds are those that finished runs have recorded: without the start of the processes, which comes once.

    Args:
        ran: seconds of each finished run.
        runs: still to end; those under way count in full.
        processes: runs at once.

    Returns:
        Nothing where no run tells, or none is left.
    """
    if not ran or not runs:
        return ""
    seconds = sum(ran) / len(ran) * runs / min(processes, runs)
    shown = f"{seconds:.0f} s" if seconds < MOST_SECONDS else f"{seconds / SECONDS_PER_MINUTE:.0f} min"
    return f", about {shown} left"


class ProgressTable:
    """Counts of finished runs of one stage, kept in a file of the study's folder."""

    def __init__(self, root: Path, stage: str, cells: Sequence[Cell]) -> None:
        """Count what is finished already."""
        self._path = root / NAME
        self._stage = stage
        self._wanted = Counter((cell.arm, cell.variant) for cell in cells)
        self._done = Counter((cell.arm, cell.variant) for cell in cells if finished(cell.folder))

    def add(self, cell: Cell) -> None:
        """Count one more finished run."""
        self._done[cell.arm, cell.variant] += 1

    def write(self, left: str) -> None:
        """Renew the file.

        Args:
            left: of this stage, from `time_left`.
        """
        head = f"{self._stage}: {self._done.total()} of {self._wanted.total()} runs{left}\n"
        replace_file(self._path, (head + self.text()).encode())

    def text(self) -> str:
        """One line an arm, one column a variant: finished of wanted."""
        arms = list(dict.fromkeys(arm for arm, _ in self._wanted))
        variants = list(dict.fromkeys(variant for _, variant in self._wanted))
        rows = [("arm", *variants), *((arm, *(self._share(arm, variant) for variant in variants)) for arm in arms)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "".join(f"{line.rstrip()}\n" for line in lines)

    def _share(self, arm: str, variant: str) -> str:
        wanted = self._wanted[arm, variant]
        return f"{self._done[arm, variant]}/{wanted}" if wanted else "-"
