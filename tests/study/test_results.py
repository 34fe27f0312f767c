"""Averages that stand side by side are over the same pairs: tables and settings, by hand."""

from __future__ import annotations

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.evaluation.tables import NOTHING
from nemo_uecr.study.results import settings, tables
from nemo_uecr.study.schema import SensitivityConfig, load_study
from nemo_uecr.study.summary import difference_table, sensitivity_table, sets_table
from tests.study.made import SMALL, made_results

pytest.importorskip("scipy", reason="the study extra is not installed")


def test_sets_are_over_common_pairs_and_differences_over_all() -> None:
    finals = {"uecr": {0: 10.0, 1: 20.0, 2: 60.0}, "grpo": {0: 9.0, 1: 17.0, 2: 55.0}, "own_teacher": {0: 2.0, 1: 4.0}}
    (summary,) = tables(load_study(SMALL), made_results(finals))
    assert summary.pairs == (0, 1)
    lines = {line.arm: line for line in summary.lines}
    assert lines["uecr"].final.mean == 30.0
    assert lines["uecr"].common.mean == 15.0
    assert lines["grpo"].against.difference.mean == 3.0  # 1, 3 and 5, all three pairs
    shown = sets_table(summary, layout="main", samples=12)
    assert [(line[0].text, line[1].text, line[1].rank) for line in shown.lines] == [
        ("initial", "0.00", 0), ("grpo", "13.00", 2), ("own_teacher", "3.00", 0), ("uecr", "15.00", 1),
    ]  # fmt: skip
    gaps = difference_table(summary, confidence=0.95)
    assert [line[1].text for line in gaps.lines] == ["3", "2", "3"]


def test_panel_by_hand() -> None:
    rho = SensitivityConfig(title="rho", default="uecr", points={"uecr": 0.5, "grpo": 0.9, "own_teacher": 0.1})
    study = load_study(SMALL).model_copy(update={"sensitivity": {"rho": rho}})
    finals = {"uecr": {0: 10.0, 1: 20.0, 2: 90.0}, "grpo": {0: 13.0, 1: 25.0}, "own_teacher": {0: 1.0, 1: 2.0, 3: 50.0}}
    (panel,) = settings(study, made_results(finals))
    assert (panel.variant, panel.pairs) == ("one_update", (0, 1))
    assert [line.arm for line in panel.lines] == ["own_teacher", "uecr", "grpo"]  # by value
    assert [line.final.mean for line in panel.lines] == [1.5, 15.0, 19.0]  # pair 2 and 3 are not common
    # grpo's gaps 3 and 5: mean 4, s = sqrt(2), s / sqrt(2) = 1, t(0.975, 1) = 12.7062
    shown = sensitivity_table(study, [panel]).lines
    assert [(line[2].text, line[2].rank, line[6].text) for line in shown] == [
        ("0.1", 0, "-13.5"), ("0.5", 1, NOTHING), ("0.9", 0, "+4.0"),
    ]  # fmt: skip
    assert shown[2][6].interval == "-8.7, +16.7"


def test_values_of_the_shipped_panels_are_those_that_the_runs_use() -> None:
    study = load_study(SMALL.parent / "main.yaml")
    assert set(study.sensitivity) == {"alpha", "rho", "tau_delta", "tau_entropy", "std_floor"}
    for key, panel in study.sensitivity.items():
        for name, value in panel.points.items():
            overrides = (*study.overrides, *study.arms[name].overrides, "run.folder=unused")
            method = load_config(study.config, overrides).config.method
            used = key == "std_floor" or key in method.entry.settings
            assert value == (getattr(method, key) if used else 0.0)
        assert "uecr" in panel.points
