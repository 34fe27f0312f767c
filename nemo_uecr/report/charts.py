"""Small charts as SVG: they stand without a script, follow the page's colours in light and dark, and tell the script
where their values lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup, escape

from nemo_uecr.report.markup import MINUS, number

#: Size of a chart's drawing, and the margins that its numbers need.
WIDTH, HEIGHT = 380, 196
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
#: Points drawn of one line in a large and in a small chart; a chart of more than three lines has fewer of each.
LARGE, SMALL, FEWEST = 400, 120, 40
#: Values that differ by less, relatively, are drawn as a flat line.
FLAT = 1e-6
#: From this many points on, a centred mean is drawn over the raw line; from `CROWDED` on, that line is fainter still.
SMOOTH_FROM, CROWDED = 20, 200


@dataclass(frozen=True)
class Series:
    """One line: values by step, and optionally an interval or a band about them."""

    label: str  # the run, or the quantity in a chart about one run
    colour: int  # index of the page's colour; in a stacked chart the style of the area
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One chart: what it shows and how."""

    name: str  # on the page
    title: str
    unit: str
    series: tuple[Series, ...]  # in the order of drawing
    points: bool = False  # markers with interval whiskers instead of a dense line with a band
    percent: bool = False  # values are shares
    zero: bool = False  # draw the zero line and keep it in view
    #: Styles of stacked areas on an axis from 0 to 1, bottom to top; further lines are for the script alone.
    stacked: tuple[str, ...] = ()
    runs: bool = False  # the lines are runs, which the page's legend can hide
    most: int = LARGE  # points drawn of a line when there are few lines

    @property
    def limit(self) -> int:
        """Points that each line may have on the page."""
        return max(FEWEST, min(self.most, 3 * self.most // max(1, len(self.series))))


@dataclass(frozen=True)
class Axes:
    """Maps steps and values to the drawing; the value axis runs from its first mark to its last."""

    x_low: float
    x_high: float
    y_marks: tuple[float, ...]

    def x(self, step: float) -> float:
        """Horizontal place of a step."""
        return LEFT + (step - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        low, high = self.y_marks[0], self.y_marks[-1]
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def path(self, x: Sequence[float], y: Sequence[float]) -> str:
        """A line through the points, as an SVG path."""
        return "M" + "L".join(f"{self.x(step):.1f} {self.y(value):.1f}" for step, value in zip(x, y, strict=True))

    def polygon(self, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
        """The area between two lines, as the points of an SVG polygon."""
        corners = [*zip(x, high, strict=True), *reversed(list(zip(x, low, strict=True)))]
        return " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in corners)


def axes_of(panel: Panel) -> Axes:
    """Axes that hold every point, interval and band, with round numbers at the ends of the value axis."""
    steps = [step for line in panel.series for step in line.x]
    x_low, x_high = min(steps), max(steps)
    x_high = max(x_high, x_low + 1)
    if panel.stacked:
        return Axes(x_low, x_high, (0.0, 0.25, 0.5, 0.75, 1.0))
    values = [v for line in panel.series for part in (line.y, line.low or (), line.high or ()) for v in part]
    low, high = min(values), max(values)
    if panel.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high == 0.0:
        high = 1.0
    elif high - low <= FLAT * max(abs(low), abs(high)):
        low, high = low - 0.1 * abs(low), high + 0.1 * abs(high)
    return Axes(x_low, x_high, tuple(ticks(low, high, 4)))


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers that cover [low, high], the outer ones on or beyond the ends."""
    raw = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, max(12, 2 - math.floor(math.log10(step)))) for index in range(first, last + 1)]


def tick_label(mark: float, step: float) -> str:
    """``mark`` with as many decimals as marks ``step`` apart need to differ."""
    if max(abs(mark), step) >= 1e6 or step < 1e-5:
        return number(mark, 4)
    decimals = next(places for places in range(8) if abs(step * 10**places - round(step * 10**places)) < 1e-6)
    return f"{mark:.{decimals}f}".replace("-", MINUS)


def centred_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over ``window`` neighbours, fewer at the ends."""
    near = [values[max(0, index - window // 2) : index + window // 2 + 1] for index in range(len(values))]
    return [sum(each) / len(each) for each in near]


def smoothing_window(count: int) -> int:
    """Odd window of the drawn mean for ``count`` points; 1 means none is drawn."""
    return 1 if count < SMOOTH_FROM else 2 * max(2, count // 30) + 1


def thinned(line: Series, limit: int) -> Series:
    """The line with at most about ``limit`` points: of each bucket the first, lowest, highest and last, so that no
    spike disappears.
    """
    count = len(line.x)
    if count <= limit:
        return line
    buckets = limit // 4
    keep: set[int] = set()
    for bucket in range(buckets):
        inside = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        keep |= {inside[0], inside[-1], min(inside, key=line.y.__getitem__), max(inside, key=line.y.__getitem__)}
    order = sorted(keep)
    low, high = (None if part is None else [part[index] for index in order] for part in (line.low, line.high))
    return replace(line, x=[line.x[i] for i in order], y=[line.y[i] for i in order], low=low, high=high)


def draw(panel: Panel) -> Markup:
    """The chart as an SVG element."""
    axes = axes_of(panel)
    if panel.stacked:
        parts = [_areas(panel, axes), _axis_marks(axes, panel)]
        label = f"{panel.title} over training steps"
    else:
        parts = [_axis_marks(axes, panel)]
        parts += [_band(line, axes, panel) for line in panel.series if not panel.points]
        for index, line in enumerate(panel.series):
            aside = 3.0 * (index - (len(panel.series) - 1) / 2)  # whiskers of several runs stand side by side
            parts.append(_markers(line, axes, aside) if panel.points else _dense(line, axes, panel))
        label = f"{panel.title}, {panel.unit}, over training steps {number(axes.x_low)} to {number(axes.x_high)}"
    return Markup(
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'{"".join(parts)}<g class="cursor"></g></svg>'
    )


def reading(panel: Panel) -> dict[str, Any]:
    """What the script needs to read values off the chart: the axes and the points of every line."""
    axes = axes_of(panel)

    def rounded(values: Sequence[float] | None) -> list[float] | None:
        return None if values is None else [float(f"{value:.6g}") for value in values]

    return {
        "box": [LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM],
        "width": WIDTH,
        "runs": panel.runs,
        "stacked": bool(panel.stacked),
        "x": [axes.x_low, axes.x_high],
        "y": [axes.y_marks[0], axes.y_marks[-1]],
        "percent": panel.percent,
        "unit": panel.unit,
        "series": [
            {
                "label": line.label,
                "colour": line.colour,
                "x": list(line.x),
                "y": rounded(line.y),
                "low": rounded(line.low),
                "high": rounded(line.high),
            }
            for line in (thinned(line, panel.limit) for line in panel.series)
        ],
    }


def _axis_marks(axes: Axes, panel: Panel) -> str:
    """Numbers along both axes, with horizontal rules where no area covers them."""
    parts = []
    marks = axes.y_marks
    step = marks[1] - marks[0]
    for mark in marks:
        y = axes.y(mark)
        shown = f"{tick_label(100 * mark, 100 * step)} %" if panel.percent else tick_label(mark, step)
        if not panel.stacked:
            kind = "zero" if mark == 0 and marks[0] < 0 else "grid"
            parts.append(f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{shown}</text>')
    for mark in ticks(axes.x_low, axes.x_high, 5):
        if axes.x_low <= mark <= axes.x_high and mark == int(mark):
            x, bottom = axes.x(mark), HEIGHT - BOTTOM
            anchor = "end" if x > WIDTH - RIGHT - 14 else "middle"
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{number(mark)}</text>'
            )
    return "".join(parts)


def _areas(panel: Panel, axes: Axes) -> str:
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP
    parts = [f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{width}" height="{height}"/>']
    floor = [0.0] * len(panel.series[0].x)
    for line, style in zip(panel.series, panel.stacked, strict=False):
        top = [min(1.0, low + value) for low, value in zip(floor, line.y, strict=True)]
        points = axes.polygon(line.x, floor, top)
        parts.append(f'<polygon class="area {style}" points="{points}"><title>{escape(line.label)}</title></polygon>')
        floor = top
    return "".join(parts)


def _dense(line: Series, axes: Axes, panel: Panel) -> str:
    if len(line.x) == 1:
        return _dot(axes, line.colour, line.x[0], line.y[0], 0.0)
    drawn, window = thinned(line, panel.limit), smoothing_window(len(line.x))
    raw = axes.path(drawn.x, drawn.y)
    if window == 1:
        return f'<path class="line run-{line.colour}" d="{raw}"/>'
    crowd = " fainter" if len(panel.series) > 2 or len(line.x) > CROWDED else ""
    mean = thinned(Series(line.label, line.colour, line.x, centred_mean(line.y, window)), panel.limit // 2)
    return (
        f'<path class="line faint{crowd} run-{line.colour}" d="{raw}"/>'
        f'<path class="line run-{line.colour}" d="{axes.path(mean.x, mean.y)}"/>'
    )


def _band(line: Series, axes: Axes, panel: Panel) -> str:
    drawn = thinned(line, panel.limit)
    if drawn.low is None or drawn.high is None:
        return ""
    if len(panel.series) > 1:
        ends = axes.path(drawn.x, drawn.high) + axes.path(drawn.x, drawn.low)
        return f'<path class="band edge run-{line.colour}" d="{ends}"/>'
    return f'<polygon class="band run-{line.colour}" points="{axes.polygon(drawn.x, drawn.low, drawn.high)}"/>'


def _markers(line: Series, axes: Axes, aside: float) -> str:
    path = axes.path(line.x, line.y)
    parts = [f'<path class="line run-{line.colour}" transform="translate({aside:g})" d="{path}"/>']
    for index, (step, value) in enumerate(zip(line.x, line.y, strict=True)):
        if line.low is not None and line.high is not None:
            x, top, bottom = axes.x(step) + aside, axes.y(line.high[index]), axes.y(line.low[index])
            parts.append(
                f'<line class="whisker run-{line.colour}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
            )
        parts.append(_dot(axes, line.colour, step, value, aside))
    return "".join(parts)


def _dot(axes: Axes, colour: int, step: float, value: float, aside: float) -> str:
    return f'<circle class="dot run-{colour}" cx="{axes.x(step) + aside:.1f}" cy="{axes.y(value):.1f}" r="3.2"/>'
