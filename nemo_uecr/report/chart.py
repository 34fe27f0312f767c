"""Small line charts as SVG: they stand without a script, and a script adds the reading of values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nemo_uecr.report.lines import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axes,
    Panel,
    Series,
    axes_of,
    centred_mean,
    smoothing_window,
    thinned,
    tick_label,
    ticks,
)
from nemo_uecr.report.markup import number, text

#: From this many points on, the raw line under the drawn mean is fainter still.
CROWDED = 200


def line_chart(panel: Panel) -> str:
    """The chart as an SVG element."""
    axes = axes_of(panel)
    parts = [axis_marks(axes, percent=panel.percent, rules=True)]
    parts += [_band(line, axes, panel) for line in panel.series if line.low is not None and not panel.points]
    for index, line in enumerate(panel.series):
        aside = 3.0 * (index - (len(panel.series) - 1) / 2)  # whiskers of several runs stand side by side
        parts.append(_markers(line, axes, aside) if panel.points else _dense(line, axes, panel))
    label = f"{panel.title}, {panel.unit}, over training steps {number(axes.x_low)} to {number(axes.x_high)}"
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(label)}">'
        f'{"".join(parts)}<g class="cursor"></g></svg>'
    )


def reading(panel: Panel) -> dict[str, object]:
    """What the script needs to read values off the chart: the axes and the points of every line."""
    axes = axes_of(panel)
    return {
        "box": [LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM],
        "width": WIDTH,
        "runs": panel.runs,
        "stacked": panel.full,
        "x": [axes.x_low, axes.x_high],
        "y": [axes.y_low, axes.y_high],
        "percent": panel.percent,
        "unit": panel.unit,
        "series": [
            {
                "label": line.label,
                "colour": line.colour,
                "x": list(line.x),
                "y": [_rounded(value) for value in line.y],
                "low": None if line.low is None else [_rounded(value) for value in line.low],
                "high": None if line.high is None else [_rounded(value) for value in line.high],
            }
            for line in (thinned(line, panel.limit) for line in panel.series)
        ],
    }


def axis_marks(axes: Axes, *, percent: bool, rules: bool) -> str:
    """Numbers along both axes, with horizontal rules if asked."""
    parts = []
    step = axes.y_marks[1] - axes.y_marks[0]
    for mark in axes.y_marks:
        y = axes.y(mark)
        shown = f"{tick_label(100 * mark, 100 * step)} %" if percent else tick_label(mark, step)
        if rules:
            kind = "zero" if mark == 0 and axes.y_low < 0 else "grid"
            parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{shown}</text>')
    marks = [m for m in ticks(axes.x_low, axes.x_high, 5) if axes.x_low <= m <= axes.x_high and m == int(m)]
    for mark in marks:
        x = axes.x(mark)
        anchor = "end" if x > WIDTH - RIGHT - 14 else "middle"
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM + 4}"/>'
        )
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{number(mark)}</text>')
    return "".join(parts)


def _path(axes: Axes, x: Sequence[float], y: Sequence[float]) -> str:
    parts, pen_down = [], False
    for step, value in zip(x, y, strict=True):
        if math.isfinite(value):
            parts.append(f"{'L' if pen_down else 'M'}{axes.x(step):.1f} {axes.y(value):.1f}")
        pen_down = math.isfinite(value)
    return "".join(parts)


def _dense(line: Series, axes: Axes, panel: Panel) -> str:
    drawn = thinned(line, panel.limit)
    raw = _path(axes, drawn.x, drawn.y)
    finite = [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    if len(finite) == 1:
        return _dot(axes, line.colour, *finite[0], aside=0.0)
    window = smoothing_window(len(line.x))
    if window == 1:
        return f'<path class="line run-{line.colour}" d="{raw}"/>'
    crowd = " fainter" if len(panel.series) > 2 or len(line.x) > CROWDED else ""
    mean = thinned(Series(line.label, line.colour, line.x, centred_mean(line.y, window)), panel.limit // 2)
    return (
        f'<path class="line faint{crowd} run-{line.colour}" d="{raw}"/>'
        f'<path class="line run-{line.colour}" d="{_path(axes, mean.x, mean.y)}"/>'
    )


def _band(line: Series, axes: Axes, panel: Panel) -> str:
    drawn = thinned(line, panel.limit)
    if drawn.low is None or drawn.high is None:
        return ""
    if len(panel.series) > 1:
        ends = _path(axes, drawn.x, drawn.high) + _path(axes, drawn.x, drawn.low)
        return f'<path class="band edge run-{line.colour}" d="{ends}"/>'
    upper = [(x, v) for x, v in zip(drawn.x, drawn.high, strict=True) if math.isfinite(v)]
    lower = [(x, v) for x, v in zip(drawn.x, drawn.low, strict=True) if math.isfinite(v)]
    corners = " ".join(f"{axes.x(x):.1f},{axes.y(v):.1f}" for x, v in upper + lower[::-1])
    return f'<polygon class="band run-{line.colour}" points="{corners}"/>'


def _markers(line: Series, axes: Axes, aside: float) -> str:
    parts = []
    for index, (step, value) in enumerate(zip(line.x, line.y, strict=True)):
        if line.low is not None and line.high is not None:
            x, top, bottom = axes.x(step) + aside, axes.y(line.high[index]), axes.y(line.low[index])
            parts.append(
                f'<line class="whisker run-{line.colour}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
            )
        parts.append(_dot(axes, line.colour, step, value, aside))
    path = _path(axes, line.x, line.y)
    return f'<path class="line run-{line.colour}" transform="translate({aside:g})" d="{path}"/>' + "".join(parts)


def _dot(axes: Axes, colour: int, step: float, value: float, aside: float) -> str:
    return f'<circle class="dot run-{colour}" cx="{axes.x(step) + aside:.1f}" cy="{axes.y(value):.1f}" r="3.2"/>'


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
