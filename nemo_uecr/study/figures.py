"""A study's figures, each as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemo_uecr.files import replace_file
from nemo_uecr.stats import Mean
from nemo_uecr.study.map import SIGNIFICANT, MapCell
from nemo_uecr.study.results import Comparison
from nemo_uecr.study.schema import StudyConfig

STYLE = {
    "figure.constrained_layout.use": True, "savefig.dpi": 130, "legend.frameon": False, "axes.grid": True,
    "grid.alpha": 0.25, "grid.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
#: variant -> arm -> (step, mean over pairs)
Curves = Mapping[str, Mapping[str, Sequence[tuple[int, Mean]]]]
#: Each point of a training curve is the mean of this many steps around it.
WINDOW = 3
#: Horizontal distance of two arms' bars at one step, as a share of all steps.
BESIDE = 0.012


@contextmanager
def _panels(path: Path, width: float, height: float, *shape: int, **shared: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its rows of axes, written as PNG and SVG when the block ends."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        yield figure, figure.subplots(*shape, squeeze=False, **shared)
        for kind in ("png", "svg"):
            content = io.BytesIO()
            figure.savefig(content, format=kind)
            replace_file(path.with_suffix(f".{kind}"), content.getvalue())


def draw_curves(folder: Path, evaluated: Curves, rewarded: Curves, *, reference: str) -> None:
    """Held-out average and training reward over steps: a column per variant, a line per arm (the reference thicker)."""
    size = (1.6 + 4.4 * len(evaluated), 6.4)
    with _panels(folder / "curves", *size, 2, len(evaluated), sharey="row", sharex="col") as (figure, rows):
        for column, (variant, arms) in enumerate(evaluated.items()):
            for place, (arm, points) in enumerate(arms.items()):
                steps, means = [step for step, _ in points], [mean for _, mean in points]
                line = {"color": f"C{place}", "linewidth": 2.4 if arm == reference else 1.4}
                rows[0][column].plot(steps, [m.mean for m in means], marker="o", markersize=3.5, label=arm, **line)
                shift = BESIDE * (steps[-1] - steps[0]) * (place - (len(arms) - 1) / 2)
                beside, low, high = [step + shift for step in steps], [m.low for m in means], [m.high for m in means]
                rows[0][column].vlines(beside, low, high, color=f"C{place}", linewidth=0.9)
                rows[1][column].plot(*_smoothed(rewarded[variant][arm]), **line)
            rows[0][column].set_title(variant)
            rows[1][column].set_xlabel("training step")
        rows[0][0].set_ylabel("held-out average, %")
        rows[1][0].set_ylabel(f"training reward, %, mean of {WINDOW} steps")
        note = "bars: intervals over pairs, shifted so that arms do not overlap"
        figure.suptitle(note, fontsize=9)
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=9)


def _smoothed(points: Sequence[tuple[int, Mean]]) -> tuple[list[int], list[float]]:
    """The steps with a whole window around them, and the windows' means."""
    steps, values, half = [step for step, _ in points], [mean.mean for _, mean in points], WINDOW // 2
    if len(values) < WINDOW:
        return steps, values
    centres = range(half, len(values) - half)
    return steps[half:-half], [sum(values[at - half : at + half + 1]) / WINDOW for at in centres]


def draw_differences(folder: Path, name: str, summaries: Sequence[Comparison]) -> None:
    """Reference minus arm with its interval, the variants of one table side by side."""
    size = (1.6 + 3.9 * len(summaries), 1.5 + 0.3 * max(len(summary.lines) for summary in summaries))
    with _panels(folder / f"differences-{name}", *size, 1, len(summaries), sharex=True) as (figure, panels):
        for axes, summary in zip(panels[0], summaries, strict=True):
            shown = [(line.arm, line.against.difference) for line in summary.lines if line.against is not None][::-1]
            for place, (_, gap) in enumerate(shown):
                colour = "C0" if gap.low > 0 or gap.high < 0 else "0.45"
                axes.plot([gap.low, gap.high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round")
                axes.plot([gap.mean], [place], "o", color=colour, markersize=5.5)
            axes.axvline(0.0, color="0.5", linewidth=0.9)
            axes.set_yticks(range(len(shown)), [f"{arm} ({gap.pairs})" for arm, gap in shown])
            axes.set_title(summary.variant, fontsize=10)
            axes.set_xlabel(f"{summary.reference} minus arm, points")
        note = "arms with their numbers of pairs; blue: the interval excludes 0"
        figure.suptitle(f"{summaries[0].title}: {note}", fontsize=9)


def draw_map(folder: Path, study: StudyConfig, cells: Sequence[MapCell], baseline: str) -> None:
    """A box per cell: coloured if one method leads (paler without significance), grey if methods are level."""
    from matplotlib.patches import Rectangle

    methods = sorted({name for cell in cells for name in cell.scores})
    columns = [table.title for table in study.tables.values()]
    wide, high = min(2, len(study.map)), (len(study.map) + 1) // 2
    with _panels(folder / "map", 1.6 + 5.2 * wide, 1.1 + 2.6 * high, high, wide) as (figure, panels):
        for axes, (title, rows) in zip(panels.flat, study.map.items(), strict=False):
            axes.set(title=title, xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
            axes.set_xticks(range(len(columns)), columns, fontsize=9)
            axes.set_yticks(range(len(rows)), rows, fontsize=9)
            axes.grid(visible=False)
            for cell in (cell for cell in cells if cell.panel == title):
                place = (columns.index(cell.column), list(rows).index(cell.row))
                alone, more = len(cell.level) == 1, len(cell.level) - 3
                alpha = 0.35 if alone and not cell.lead.reportable_p < SIGNIFICANT else 1.0
                colour = f"C{methods.index(cell.level[0])}" if alone else "0.92"
                axes.add_patch(Rectangle((place[0] - 0.48, place[1] - 0.46), 0.96, 0.92, color=colour, alpha=alpha))
                names = [*cell.level[:3], f"and {more} more"] if more > 1 else cell.level
                head = "next" if cell.level[0] == baseline else f"over {baseline}"
                gain = f"{head}: {cell.gain.difference.mean:+.1f}{'*' if cell.gain.reportable_p < SIGNIFICANT else ''}"
                weight = "bold" if alone else "normal"
                axes.text(*place, "\n".join([*names, gain]), ha="center", va="center", fontsize=8, weight=weight)
        note = (
            "coloured: one method leads (pale: before correction only); grey: indistinguishable, the best first;\n"
            f"points of the best over {baseline}, * where Holm's p < {SIGNIFICANT}"
        )
        figure.suptitle(f"{note}; {min(cell.lead.difference.pairs for cell in cells)} pairs or more", fontsize=9)
