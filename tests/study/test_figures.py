"""What stands where in a study's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.stats import Mean
from nemo_uecr.study import figures

pytest.importorskip("matplotlib", reason="the study extra is not installed")


def test_points_of_a_learning_curve_stand_at_their_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.append(figure))
    points = [(0, Mean(10.0, 5.0, 15.0, 5)), (20, Mean(30.0, 20.0, 40.0, 5)), (40, Mean(50.0, 45.0, 55.0, 5))]
    rewards = [(step, Mean(step, step, step, 5)) for step in range(1, 5)]
    curves = {"one_update": {"grpo": points, "uecr": points}}
    figures.draw_curves(tmp_path, curves, {"one_update": {"grpo": rewards, "uecr": rewards}}, reference="uecr")
    (figure,) = drawn
    axes = figure.axes[0]
    assert [list(line.get_xdata()) for line in axes.lines] == [[0, 20, 40], [0, 20, 40]]
    # the two arms' bars stand half a distance of 0.012 x 40 steps on either side: 0.24
    bars = [[round(float(path.vertices[0, 0]), 6) for path in each.get_paths()] for each in axes.collections]
    assert bars == [[-0.24, 19.76, 39.76], [0.24, 20.24, 40.24]]
    assert "stand beside" in figure.get_suptitle()
    smooth = figure.axes[1].lines[0]
    assert (list(smooth.get_xdata()), list(smooth.get_ydata())) == ([2, 3], [2.0, 3.0])  # means of 1, 2, 3 and 2, 3, 4
