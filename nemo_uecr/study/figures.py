"""A study's figures, drawn from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.study.statistics import Mean
from nemo_uecr.study.summary import TableSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 130
FORMATS = ("png", "svg")


def draw_curves(folder: Path, curves: Mapping[str, Mapping[str, Sequence[tuple[int, Mean]]]]) -> Path:
    """Average of the sets over training steps, one panel a variant, one line an arm with its interval."""
    figure = _figure(5.4 * len(curves), 3.9)
    panels = figure.subplots(1, len(curves), squeeze=False, sharey=True)[0]
    for axes, (variant, arms) in zip(panels, curves.items(), strict=True):
        for colour, (arm, points) in enumerate(arms.items()):
            steps = [step for step, _ in points]
            axes.plot(steps, [mean.mean for _, mean in points], color=f"C{colour}", label=arm, linewidth=1.6)
            low, high = [mean.low for _, mean in points], [mean.high for _, mean in points]
            axes.fill_between(steps, low, high, color=f"C{colour}", alpha=0.13, linewidth=0)
        axes.set_title(variant)
        axes.set_xlabel("training step")
        _plain(axes)
    panels[0].set_ylabel("average of the held-out sets, %")
    panels[-1].legend(fontsize=8, frameon=False)
    return _save(figure, folder / "curves")


def draw_differences(folder: Path, summaries: Sequence[TableSummary]) -> Path:
    """Reference minus arm with its interval, one panel a table and variant."""
    rows = max(len(summary.lines) for summary in summaries)
    figure = _figure(4.6 * len(summaries), 1.4 + 0.32 * rows)
    panels = figure.subplots(1, len(summaries), squeeze=False)[0]
    for axes, summary in zip(panels, summaries, strict=True):
        shown = [(line.arm, line.against.difference) for line in summary.lines if line.against is not None]
        for place, (_, found) in enumerate(reversed(shown)):
            axes.plot([found.low, found.high], [place, place], color="C0", linewidth=2.2, solid_capstyle="round")
            axes.plot([found.mean], [place], "o", color="C0", markersize=5.5)
        axes.axvline(0.0, color="0.5", linewidth=0.9)
        axes.set_yticks(range(len(shown)), [name for name, _ in reversed(shown)])
        axes.set_title(f"{summary.title} ({summary.variant})", fontsize=10)
        axes.set_xlabel(f"{summary.reference} minus arm, points")
        _plain(axes)
    return _save(figure, folder / "differences")


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind in FORMATS:
        figure.savefig(path.with_suffix(f".{kind}"), dpi=DOTS_PER_INCH)
    return path.with_suffix(".png")
