"""A study's figures, drawn from its numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_uecr.files import replace_file
from nemo_uecr.stats import Mean
from nemo_uecr.study.results import Comparison, Cost
from nemo_uecr.study.schema import StudyConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 130
FORMATS = ("png", "svg")
#: variant -> arm -> (step, mean over pairs)
Curves = Mapping[str, Mapping[str, Sequence[tuple[int, Mean]]]]
#: Batches of the training curve are small; each point is the mean of this many steps around it.
WINDOW = 3
#: Distance of the bars of two arms at one step, as a share of all steps.
BESIDE = 0.012
BESIDE_NOTE = "points stand at their step; the bars, intervals over pairs, stand beside it to be told apart"


def draw_curves(folder: Path, evaluated: Curves, rewarded: Curves, *, reference: str) -> Path:
    """Held-out average and training reward over steps, one column a variant, one line an arm.

    Args:
        folder: where the figure goes.
        evaluated: average of the held-out sets at the evaluated steps.
        rewarded: mean task reward of the training batches at every step.
        reference: arm that is drawn thicker.
    """
    figure = _figure(1.6 + 4.4 * len(evaluated), 6.4)
    rows = figure.subplots(2, len(evaluated), squeeze=False, sharey="row", sharex="col")
    for column, (variant, arms) in enumerate(evaluated.items()):
        for place, (arm, points) in enumerate(arms.items()):
            width = 2.4 if arm == reference else 1.4
            aside = place - (len(arms) - 1) / 2
            _with_intervals(rows[0][column], points, aside, arm, f"C{place}", width)
            steps, means = _smoothed(rewarded[variant][arm])
            rows[1][column].plot(steps, means, color=f"C{place}", linewidth=width)
        rows[0][column].set_title(variant)
        rows[1][column].set_xlabel("training step")
        for axes in rows[:, column]:
            _plain(axes)
    rows[0][0].set_ylabel("held-out average, %")
    rows[1][0].set_ylabel(f"training reward, %, mean of {WINDOW} steps")
    figure.suptitle(BESIDE_NOTE, fontsize=9)
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=9, frameon=False)
    return _save(figure, folder / "curves")


def draw_differences(folder: Path, name: str, summaries: Sequence[Comparison]) -> Path:
    """Reference minus arm with its interval: the variants of one table side by side."""
    rows = max(len(summary.lines) for summary in summaries)
    figure = _figure(1.6 + 3.9 * len(summaries), 1.5 + 0.3 * rows)
    panels = figure.subplots(1, len(summaries), squeeze=False, sharex=True)[0]
    for axes, summary in zip(panels, summaries, strict=True):
        shown = [(line.arm, line.against.difference) for line in summary.lines if line.against is not None]
        for place, (_, found) in enumerate(reversed(shown)):
            sure = found.low > 0 or found.high < 0
            colour = "C0" if sure else "0.45"
            axes.plot([found.low, found.high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round")
            axes.plot([found.mean], [place], "o", color=colour, markersize=5.5)
        axes.axvline(0.0, color="0.5", linewidth=0.9)
        axes.set_yticks(range(len(shown)), [f"{arm} ({found.pairs})" for arm, found in reversed(shown)])
        axes.set_title(summary.variant, fontsize=10)
        axes.set_xlabel(f"{summary.reference} minus arm, points")
        _plain(axes)
    note = "arms with their number of pairs; blue where the interval leaves out 0"
    figure.suptitle(f"{summaries[0].title}: {note}", fontsize=9)
    return _save(figure, folder / f"differences-{name}")


def draw_sensitivity(folder: Path, study: StudyConfig, panels: Sequence[Comparison]) -> Path:
    """Final average by value of each setting, and its paired difference to the shipped value, which is marked."""
    figure = _figure(0.8 + 2.3 * len(panels), 5.0)
    rows = figure.subplots(2, len(panels), squeeze=False, sharey="row", sharex="col")
    for column, panel in enumerate(panels):
        arms = [line.arm for line in panel.lines]
        default, values = arms.index(panel.reference), study.sensitivity[panel.name].points
        flat = Mean(0.0, 0.0, 0.0, len(panel.pairs))
        gaps = [flat if line.against is None else negated(line.against.difference) for line in panel.lines]
        _whiskers(rows[0][column], [line.final for line in panel.lines], default)
        _whiskers(rows[1][column], gaps, default)
        rows[1][column].axhline(0.0, color="0.5", linewidth=0.9)
        rows[1][column].set_xticks(range(len(arms)), [f"{values[arm]:g}" for arm in arms])
        rows[1][column].set_xlim(-0.5, len(arms) - 0.5)
        rows[1][column].set_xlabel(panel.title)
        rows[0][column].set_title(f"{panel.variant}, {len(panel.pairs)} pairs", fontsize=9)
    rows[0][0].set_ylabel("held-out average, %")
    rows[1][0].set_ylabel("minus the shipped value, points")
    return _save(figure, folder / "sensitivity")


def negated(mean: Mean) -> Mean:
    """Arm minus reference, from reference minus arm."""
    return Mean(-mean.mean, -mean.high, -mean.low, mean.pairs)


def draw_costs(folder: Path, costs: Sequence[Cost]) -> Path:
    """Seconds of a step by phase, one bar an arm, one panel a variant."""
    variants = list(dict.fromkeys(cost.variant for cost in costs))
    phases = list(dict.fromkeys(phase for cost in costs for phase in cost.seconds))
    most = max(sum(cost.variant == variant for cost in costs) for variant in variants)
    figure = _figure(1.6 + 4.2 * len(variants), 1.6 + 0.26 * most)
    for axes, variant in zip(figure.subplots(1, len(variants), squeeze=False, sharex=True)[0], variants, strict=True):
        shown = [cost for cost in costs if cost.variant == variant]
        left = [0.0] * len(shown)
        for colour, phase in enumerate(phases):
            widths = [cost.seconds.get(phase, 0.0) for cost in shown]
            axes.barh(range(len(shown)), widths, left=left, color=f"C{colour}", label=phase, height=0.7)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(shown)), [cost.arm for cost in shown])
        axes.invert_yaxis()
        axes.set_title(variant, fontsize=10)
        axes.set_xlabel("seconds of a step")
        _plain(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    return _save(figure, folder / "costs")


def _whiskers(axes: Axes, means: Sequence[Mean], marked: int) -> None:
    """Means with their intervals, joined in order; the marked one in another colour."""
    axes.plot(range(len(means)), [mean.mean for mean in means], color="0.6", linewidth=1.0)
    for place, mean in enumerate(means):
        colour = "C1" if place == marked else "C0"
        axes.plot([place, place], [mean.low, mean.high], color=colour, linewidth=2)
        axes.plot([place], [mean.mean], "o", color=colour, markersize=6)
    _plain(axes)


def _with_intervals(
    axes: Axes, points: Sequence[tuple[int, Mean]], aside: float, label: str, colour: str, width: float
) -> None:
    """A line at its steps with its intervals as bars, which stand beside their step so that several can be told apart.

    Args:
        axes: where to draw.
        points: (step, mean over pairs).
        aside: place of this arm's bars from the middle one's, in bars.
        label: name of the arm.
        colour: of line and bars.
        width: of the line.
    """
    shift = BESIDE * (points[-1][0] - points[0][0]) * aside
    steps, means = [step for step, _ in points], [mean for _, mean in points]
    axes.plot(steps, [m.mean for m in means], marker="o", markersize=3.5, color=colour, linewidth=width, label=label)
    beside = [step + shift for step in steps]
    axes.vlines(beside, [m.low for m in means], [m.high for m in means], color=colour, linewidth=0.9)


def _smoothed(points: Sequence[tuple[int, Mean]]) -> tuple[list[int], list[float]]:
    """Steps with a whole window around them, and its means."""
    values, half = [mean.mean for _, mean in points], WINDOW // 2
    if len(values) < WINDOW:
        return [step for step, _ in points], values
    centres = range(half, len(values) - half)
    return [points[at][0] for at in centres], [sum(values[at - half : at + half + 1]) / WINDOW for at in centres]


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _save(figure: Figure, path: Path) -> Path:
    for kind in FORMATS:
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=DOTS_PER_INCH)
        replace_file(path.with_suffix(f".{kind}"), content.getvalue())
    return path.with_suffix(".png")
