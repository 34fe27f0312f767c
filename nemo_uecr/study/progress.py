"""How far a study is: finished runs by arm and variant, renewed after every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nemo_uecr.data.atomic import replace_file
from nemo_uecr.study.cells import Cell
from nemo_uecr.study.runner import finished

NAME = "progress.txt"


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

    def write(self, minutes_left: float | None) -> None:
        """Renew the file.

        Args:
            minutes_left: of this stage; None while no run tells.
        """
        left = "" if minutes_left is None else f", about {minutes_left:.0f} min left"
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
