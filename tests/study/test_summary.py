"""Averages that stand side by side are over the same pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.study.load import load_study
from nemo_uecr.study.summary import table_summaries
from nemo_uecr.study.tables import difference_table, sets_table
from tests.study.made import made_cell, made_result

pytest.importorskip("scipy", reason="the study extra is not installed")

SMALL = Path(__file__).resolve().parents[2] / "examples" / "configs" / "study" / "small.yaml"


def test_sets_are_over_common_pairs_and_differences_over_all() -> None:
    finals = {
        "uecr": {0: 10.0, 1: 20.0, 2: 60.0},
        "grpo": {0: 9.0, 1: 17.0, 2: 55.0},
        "own_teacher": {0: 2.0, 1: 4.0},
    }
    results = [
        made_result(made_cell(arm, pair, variant="one_update"), final)
        for arm, by_pair in finals.items()
        for pair, final in by_pair.items()
    ]
    (summary,) = table_summaries(load_study(SMALL), results)
    assert summary.pairs == (0, 1)
    lines = {line.arm: line for line in summary.lines}
    assert lines["uecr"].final.mean == 30.0
    assert lines["uecr"].common is not None
    assert lines["uecr"].common.mean == 15.0
    assert lines["grpo"].against is not None
    assert lines["grpo"].against.difference.mean == 3.0  # 1, 3 and 5, all three pairs
    shown = sets_table(summary, layout="main", samples=12)
    assert shown is not None
    assert [(line[0].text, line[1].text, line[1].rank) for line in shown.lines] == [
        ("initial", "0.00", 0), ("grpo", "13.00", 2), ("own_teacher", "3.00", 0), ("uecr", "15.00", 1),
    ]  # fmt: skip
    gaps = difference_table(summary, confidence=0.95)
    assert [line[1].text for line in gaps.lines] == ["3", "2", "3"]
