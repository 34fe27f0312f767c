"""What a chart shows and on which scale: lines, round numbers along the axes, smoothing, thinning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_uecr.report.markup import MINUS, number

#: Size of a chart's drawing, and the margins that its numbers need.
WIDTH, HEIGHT = 380, 196
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
#: Points drawn of one line in a large and in a small chart; a chart of more than three lines has fewer of each.
#: A thinned line keeps each bucket's lowest and highest point, so that no spike disappears.
LARGE, SMALL, FEWEST = 400, 120, 40
#: Values that differ by less, relatively, are drawn as a flat line.
FLAT = 1e-6
#: Values all smaller than this are drawn as 0: their steps have no float between them.
TINY = 1e-200
#: From this many points on, a centred mean is drawn over the raw line.
SMOOTH_FROM = 20


@dataclass(frozen=True)
class Series:
    """One line: points, and optionally an interval or a band about them.

    Attributes:
        label: the run, or the quantity in a chart about one run.
        colour: index of the page's colour.
        x: steps.
        y: values; a value that is not finite leaves a gap.
        low: lower ends of the interval.
        high: upper ends of the interval.
    """

    label: str
    colour: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One chart: what it shows and how.

    Attributes:
        name: identity of the chart on the page.
        title: its heading.
        unit: unit of the values.
        series: lines, drawn in order.
        points: draw markers with interval whiskers instead of a dense line with a band.
        percent: values are shares, shown in percent.
        zero: draw the zero line and keep it in view.
        full: the value axis runs from 0 to 1 and the lines are stacked areas.
        runs: the lines are runs, which the page's legend can hide.
        most: points drawn of a line when there are few lines.
    """

    name: str
    title: str
    unit: str
    series: tuple[Series, ...]
    points: bool = False
    percent: bool = False
    zero: bool = False
    full: bool = False
    runs: bool = False
    most: int = LARGE

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

    @property
    def y_low(self) -> float:
        """Value at the bottom of the drawing."""
        return self.y_marks[0]

    @property
    def y_high(self) -> float:
        """Value at the top of the drawing."""
        return self.y_marks[-1]

    def x(self, step: float) -> float:
        """Horizontal place of a step."""
        return LEFT + (step - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        return TOP + (self.y_high - value) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers that cover [low, high], the outer ones on or beyond the ends."""
    span = high - low
    raw = span / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, max(12, 2 - math.floor(math.log10(step)))) for index in range(first, last + 1)]


def tick_label(mark: float, step: float) -> str:
    """``mark`` with as many decimals as marks ``step`` apart need to differ."""
    size = max(abs(mark), step)
    if size >= 1e6 or step < 1e-5:
        return number(mark, 4)
    decimals = next(places for places in range(8) if abs(step * 10**places - round(step * 10**places)) < 1e-6)
    return f"{mark:.{decimals}f}".replace("-", MINUS)


def centred_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over ``window`` neighbours (fewer at the ends); values that are not finite are left out."""
    half = window // 2
    smooth = []
    for index in range(len(values)):
        near = [value for value in values[max(0, index - half) : index + half + 1] if math.isfinite(value)]
        smooth.append(sum(near) / len(near) if near else math.nan)
    return smooth


def smoothing_window(count: int) -> int:
    """Odd window of the drawn mean for ``count`` points; 1 means none is drawn."""
    return 1 if count < SMOOTH_FROM else 2 * max(2, count // 30) + 1


def axes_of(panel: Panel) -> Axes:
    """Axes that hold every point, interval and band, with round numbers at the ends of the value axis."""
    series = panel.series
    steps = [step for line in series for step in line.x]
    x_low, x_high = (min(steps), max(steps)) if steps else (0, 1)
    x_high = max(x_high, x_low + 1)
    if panel.full:
        return Axes(x_low, x_high, (0.0, 0.25, 0.5, 0.75, 1.0))
    values = [
        value
        for line in series
        for part in (line.y, line.low or (), line.high or ())
        for value in part
        if math.isfinite(value)
    ]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if panel.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if max(abs(low), abs(high)) < TINY:
        low, high = 0.0, 1.0
    elif high - low <= FLAT * max(abs(low), abs(high)):
        low, high = low - 0.1 * abs(low), high + 0.1 * abs(high)
    return Axes(x_low, x_high, tuple(ticks(low, high, 4)))


def thinned(line: Series, limit: int) -> Series:
    """The line with at most about ``limit`` points: per bucket its first, lowest, highest and last."""
    count = len(line.x)
    if count <= limit:
        return line
    buckets = limit // 4
    keep: set[int] = set()
    for bucket in range(buckets):
        inside = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        known = [index for index in inside if math.isfinite(line.y[index])] or inside
        keep |= {inside[0], inside[-1], min(known, key=line.y.__getitem__), max(known, key=line.y.__getitem__)}
    order = sorted(keep)

    def part(values: Sequence[float]) -> list[float]:
        return [values[index] for index in order]

    return Series(
        line.label, line.colour, part(line.x), part(line.y),
        None if line.low is None else part(line.low), None if line.high is None else part(line.high),
    )  # fmt: skip
