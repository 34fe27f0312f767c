"""Axes, smoothing and thinning of the charts."""

from __future__ import annotations

import re

import pytest

from nemo_uecr.report import charts
from nemo_uecr.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Panel, Series, draw, thinned


def panel(*values: float) -> Panel:
    return Panel("name", "Title", "unit", (Series("a", 0, range(1, len(values) + 1), values),))


@pytest.mark.parametrize("values", [[0.0, 0.0], [3.0, 3.0], [1e-9, 1e-9], [0.0, 1e-17]])
def test_constant_values_still_have_axes(values: list[float]) -> None:
    marks = charts.axes_of(panel(*values)).y_marks
    assert marks[-1] > marks[0] >= 0.0
    assert "nan" not in draw(panel(*values))


def test_drawn_path_goes_through_the_values() -> None:
    # x from 1 to 3 maps to LEFT..WIDTH-RIGHT; y from 0 to 1 maps to HEIGHT-BOTTOM..TOP; the middle point is halfway
    drawing = draw(panel(0.0, 0.5, 1.0))
    middle = ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    assert f"M{LEFT:.1f} {HEIGHT - BOTTOM:.1f}L{middle[0]:.1f} {middle[1]:.1f}L{WIDTH - RIGHT:.1f} {TOP:.1f}" in drawing


def test_centred_mean() -> None:
    # ends average over what is there: (1 + 2) / 2; inside: (1 + 2 + 6) / 3
    assert charts.centred_mean([1.0, 2.0, 6.0, 4.0], 3) == pytest.approx([1.5, 3.0, 4.0, 5.0])


def test_thinning_keeps_ends_and_spikes() -> None:
    values = [0.0] * 5000
    values[1234], values[4321] = 9.0, -9.0
    line = thinned(Series("a", 0, list(range(5000)), values, values, values), 400)
    assert len(line.x) <= 400
    assert (line.x[0], line.x[-1]) == (0, 4999)
    assert line.y[list(line.x).index(1234)] == 9.0
    assert line.y[list(line.x).index(4321)] == -9.0
    assert len(line.low) == len(line.x)


def test_stacked_areas_fill_the_frame() -> None:
    shares = tuple(Series(name, 0, [1, 2], values) for name, values in (("a", [0.25, 0.5]), ("b", [0.75, 0.5])))
    drawing = draw(Panel("name", "Title", "unit", shares, percent=True, stacked=("right", "wrong")))
    upper = re.findall(r'area wrong" points="([^"]*)"', drawing)[0].split()
    # the second area: along the top of the frame, and back along the first one's end
    assert [point.split(",")[1] for point in upper[:2]] == [f"{TOP:.1f}"] * 2
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    assert upper[2] == f"{WIDTH - RIGHT:.1f},{middle:.1f}"
