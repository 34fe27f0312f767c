"""The progress table counts finished runs by arm and variant."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.study.progress import NAME, ProgressTable, time_left
from tests.study.made import made_cell


def test_counts_by_arm_and_variant(tmp_path: Path) -> None:
    cells = [made_cell("uecr", pair, variant=variant) for variant in ("one", "four") for pair in (0, 1)]
    cells += [made_cell("bad", 0, variant="one")]
    table = ProgressTable(tmp_path, "tables", cells)
    table.add(cells[0])
    table.add(cells[3])
    table.write(", about 7 min left")
    assert (tmp_path / NAME).read_text() == (
        "tables: 2 of 5 runs, about 7 min left\narm   one  four\nuecr  1/2  1/2\nbad   0/1  -\n"
    )


@pytest.mark.parametrize(
    ("ran", "runs", "processes", "said"),
    [
        ([], 4, 2, ""),  # no run tells
        ([600.0], 11, 2, ", about 55 min left"),  # 600 s * 11 / 2 = 3300 s
        ([600.0, 1200.0], 1, 4, ", about 15 min left"),  # one run is in one process, whatever their number
        ([4.0, 2.0], 8, 2, ", about 12 s left"),
    ],
)
def test_the_time_left_is_that_of_the_runs_in_their_processes(
    ran: list[float], runs: int, processes: int, said: str
) -> None:
    assert time_left(ran, runs, processes) == said
