"""What the figures of the audits share: lines with a band, axes in percent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def band(axes: Axes, steps: Sequence[float], shares: Sequence[dict[str, Any]], label: str, colour: int) -> None:
    """A line through the values with the interval as a band; what has no value leaves a gap."""
    shown = [
        (step, share["value"], share["low"], share["high"])
        for step, share in zip(steps, shares, strict=True)
        if share["value"] is not None
    ]
    if not shown:
        return
    x, value, low, high = zip(*shown, strict=True)
    axes.plot(x, value, marker="o", markersize=3.5, linewidth=1.4, color=f"C{colour}", label=label)
    if all(end is not None for end in (*low, *high)):
        axes.fill_between(x, low, high, color=f"C{colour}", alpha=0.16, linewidth=0)


def percent_axis(axes: Axes, title: str, label: str) -> None:
    """A vertical axis from 0 to 100%."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title(title)
    axes.set_ylabel(label)
