"""Small SVG charts, drawn by `assets/chart.svg.jinja`.

They need no script and follow the page's light and dark colours; `chart_data` gives their data to the page's script.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from nemo_uecr.report.markup import MINUS, number, templates

#: Size of a chart's drawing, and the margins that its numbers need.
WIDTH, HEIGHT = 380, 196
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
#: Points per line in a large and in a small chart, and the fewest in a chart of more than three lines.
LARGE, SMALL, FEWEST = 400, 120, 40
#: Smaller relative differences are drawn as a flat line.
FLAT = 1e-6
#: From this many points on, a centred mean is drawn over the raw line; from `CROWDED` on, the raw line is fainter.
SMOOTH_FROM, CROWDED = 20, 200


@dataclass(frozen=True)
class Series:
    """One line: values by step, and optionally an interval or a band about them."""

    label: str  # the run, or the quantity in a chart of one run
    colour: int  # index into the page's colours
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One chart."""

    name: str  # unique on the page
    title: str
    unit: str
    series: tuple[Series, ...]  # in the order of drawing
    points: bool = False  # markers with interval whiskers instead of a dense line with a band
    percent: bool = False  # values are shares
    zero: bool = False  # draw the zero line
    #: Styles of stacked areas on an axis from 0 to 1, bottom to top; only the script reads further lines.
    stacked: tuple[str, ...] = ()
    runs: bool = False  # the lines are runs, which the page's legend can hide
    most: int = LARGE  # points per line in a chart of few lines

    @property
    def limit(self) -> int:
        """Points per line."""
        return max(FEWEST, min(self.most, 3 * self.most // max(1, len(self.series))))


@dataclass(frozen=True)
class Axes:
    """Maps steps and values to the drawing; the value axis spans its marks."""

    x_low: float
    x_high: float
    y_marks: tuple[float, ...]
    percent: bool

    @property
    def x_marks(self) -> list[float]:
        """Marks of the step axis, all integers."""
        marks = ticks(self.x_low, self.x_high, 5)
        return [mark for mark in marks if self.x_low <= mark <= self.x_high and mark == int(mark)]

    def x(self, step: float) -> float:
        """Horizontal position of a step."""
        return round(LEFT + (step - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Vertical position of a value."""
        low, high = self.y_marks[0], self.y_marks[-1]
        return round(TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    def path(self, x: Sequence[float], y: Sequence[float]) -> str:
        """A line through the points, as an SVG path."""
        return "M" + "L".join(f"{self.x(step)} {self.y(value)}" for step, value in zip(x, y, strict=True))

    def polygon(self, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
        """The area between two lines, as the points of an SVG polygon."""
        corners = [*zip(x, high, strict=True), *reversed(list(zip(x, low, strict=True)))]
        return " ".join(f"{self.x(step)},{self.y(value)}" for step, value in corners)

    def label(self, mark: float) -> str:
        """A mark of the value axis, with enough decimals to distinguish it from its neighbours."""
        scale, unit = (100, " %") if self.percent else (1, "")
        mark, step = scale * mark, scale * (self.y_marks[1] - self.y_marks[0])
        if max(abs(mark), step) >= 1e6 or step < 1e-5:
            return number(mark, 4) + unit
        decimals = next(places for places in range(8) if abs(step * 10**places - round(step * 10**places)) < 1e-6)
        return f"{mark:.{decimals}f}{unit}".replace("-", MINUS)


def axes_of(panel: Panel) -> Axes:
    """Axes that include every point and interval; the value axis ends at round numbers."""
    steps = [step for line in panel.series for step in line.x]
    x_low, x_high = min(steps), max(steps)
    x_high = max(x_high, x_low + 1)
    if panel.stacked:
        return Axes(x_low, x_high, (0.0, 0.25, 0.5, 0.75, 1.0), panel.percent)
    values = [v for line in panel.series for part in (line.y, line.low or (), line.high or ()) for v in part]
    low, high = min(values), max(values)
    if panel.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high == 0.0:
        high = 1.0
    elif high - low <= FLAT * max(abs(low), abs(high)):
        low, high = low - 0.1 * abs(low), high + 0.1 * abs(high)
    return Axes(x_low, x_high, tuple(ticks(low, high, 4)), panel.percent)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` equidistant round numbers whose range includes [low, high]."""
    raw = (high - low) / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, max(12, 2 - math.floor(math.log10(step)))) for index in range(first, last + 1)]


def centred_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over ``window`` neighbours, fewer at the ends."""
    near = [values[max(0, index - window // 2) : index + window // 2 + 1] for index in range(len(values))]
    return [sum(each) / len(each) for each in near]


def smoothing_window(count: int) -> int:
    """Odd window of the centred mean for ``count`` points; 1 means none."""
    return 1 if count < SMOOTH_FROM else 2 * max(2, count // 30) + 1


def thinned(line: Series, limit: int) -> Series:
    """The line with at most ``limit`` points: the first, lowest, highest and last of each bucket, to keep spikes."""
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
    over = "over training steps"
    if not panel.stacked:
        over = f"{panel.unit}, {over} {number(axes.x_low)} to {number(axes.x_high)}"
    drawing = templates().get_template("chart.svg.jinja").render(
        panel=panel, axes=axes, label=f"{panel.title}, {over}",
        width=WIDTH, height=HEIGHT, left=LEFT, top=TOP, right=WIDTH - RIGHT, bottom=HEIGHT - BOTTOM,
        areas=_areas(panel), lines=[] if panel.stacked else [_smoothed(line, panel) for line in panel.series],
    )  # fmt: skip
    return Markup(drawing)


def _areas(panel: Panel) -> Iterator[tuple[str, Series, list[float], list[float]]]:
    """Style, line, floor and ceiling of each stacked area, bottom to top."""
    floor = [0.0] * len(panel.series[0].x)
    for line, style in zip(panel.series, panel.stacked, strict=False):
        ceiling = [min(1.0, low + value) for low, value in zip(floor, line.y, strict=True)]
        yield style, line, floor, ceiling
        floor = ceiling


def _smoothed(line: Series, panel: Panel) -> tuple[Series, Series | None, str]:
    """The thinned line, the centred mean of a long one, and the thinned line's style."""
    drawn, window = thinned(line, panel.limit), smoothing_window(len(line.x))
    if panel.points or window == 1:
        return drawn, None, ""
    mean = replace(line, y=centred_mean(line.y, window), low=None, high=None)
    crowded = len(panel.series) > 2 or len(line.x) > CROWDED
    return drawn, thinned(mean, panel.limit // 2), " faint fainter" if crowded else " faint"


def chart_data(panel: Panel) -> dict[str, Any]:
    """A chart's data for the page's script: the axes and the points of every line."""
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
            vars(line) | {"y": rounded(line.y), "low": rounded(line.low), "high": rounded(line.high)}
            for line in (thinned(line, panel.limit) for line in panel.series)
        ],
    }
