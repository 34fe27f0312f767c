"""The progress table counts finished runs by arm and variant."""

from __future__ import annotations

from pathlib import Path

from nemo_uecr.study.progress import NAME, ProgressTable
from tests.study.made import made_cell


def test_counts_by_arm_and_variant(tmp_path: Path) -> None:
    cells = [made_cell("uecr", pair, variant=variant) for variant in ("one", "four") for pair in (0, 1)]
    cells += [made_cell("bad", 0, variant="one")]
    table = ProgressTable(tmp_path, "tables", cells)
    table.add(cells[0])
    table.add(cells[3])
    table.write(7.4)
    assert (tmp_path / NAME).read_text() == (
        "tables: 2 of 5 runs, about 7 min left\narm   one  four\nuecr  1/2  1/2\nbad   0/1  -\n"
    )
