"""Panels compare values of a setting on the pairs that all of them have."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.config.load import load_config
from nemo_uecr.study.load import load_study
from nemo_uecr.study.schema import SensitivityConfig
from nemo_uecr.study.sensitivity import panels
from tests.study.made import made_cell, made_result

pytest.importorskip("scipy", reason="the study extra is not installed")

STUDIES = Path(__file__).resolve().parents[2] / "examples" / "configs" / "study"


def test_panel_by_hand() -> None:
    small = load_study(STUDIES / "small.yaml")
    rho = SensitivityConfig(title="rho", default="uecr", points={"uecr": 0.5, "grpo": 0.9, "own_teacher": 0.1})
    study = small.model_copy(update={"sensitivity": {"rho": rho}})
    finals = {
        "uecr": {0: 10.0, 1: 20.0, 2: 90.0},
        "grpo": {0: 13.0, 1: 25.0},
        "own_teacher": {0: 1.0, 1: 2.0, 3: 50.0},
    }
    results = [
        made_result(made_cell(arm, pair, variant="one_update"), final)
        for arm, by_pair in finals.items()
        for pair, final in by_pair.items()
    ]
    (panel,) = panels(study, results)
    assert (panel.variant, panel.pairs) == ("one_update", (0, 1))
    assert [(point.arm, point.value) for point in panel.points] == [("own_teacher", 0.1), ("uecr", 0.5), ("grpo", 0.9)]
    assert [point.final.mean for point in panel.points] == [1.5, 15.0, 19.0]  # pair 2 and 3 are not common
    gaps = {point.arm: point.against for point in panel.points}
    assert gaps["uecr"] is None
    assert gaps["grpo"] is not None
    # gaps 3 and 5: mean 4, s = sqrt(2), s / sqrt(2) = 1, t(0.975, 1) = 12.7062
    assert gaps["grpo"].mean == 4.0
    assert gaps["grpo"].high == pytest.approx(4.0 + 12.7062, abs=1e-3)


def test_values_of_the_shipped_panels_are_those_that_the_runs_use() -> None:
    study = load_study(STUDIES / "main.yaml")
    assert set(study.sensitivity) == {"alpha", "rho", "tau_delta", "tau_entropy", "std_floor"}
    for key, panel in study.sensitivity.items():
        for name, value in panel.points.items():
            overrides = (*study.overrides, *study.arms[name].overrides, "run.folder=unused")
            method = load_config(study.config, overrides).config.method
            used = key == "std_floor" or key in method.entry.settings
            assert value == (getattr(method, key) if used else 0.0)
        assert "uecr" in panel.points
