"""A study's figures, each as PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.study.map import SIGNIFICANT, MapCell, opponents
from benchmarks.study.pairs import mean_interval
from benchmarks.study.results import Comparison, RunResult, runs_by_arm
from benchmarks.study.schema import StudyConfig, method
from nemo_uecr.files import replace_file

#: Each point of a training curve is the mean of this many steps around it.
WINDOW = 3
#: Horizontal distance of two arms' bars at one step, as a share of all steps.
BESIDE = 0.012


@contextmanager
def _panels(path: Path, width: float, height: float, *shape: int, **shared: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its rows of axes, written as PNG and SVG when the block ends."""
    import matplotlib
    from matplotlib.figure import Figure

    from nemo_uecr.audit.figures import STYLE

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(*shape, squeeze=False, **shared)
        for kind in ("png", "svg"):
            content = io.BytesIO()
            figure.savefig(content, format=kind, dpi=130)
            replace_file(path.with_suffix(f".{kind}"), content.getvalue())


def draw_curves(folder: Path, study: StudyConfig, tables: Sequence[Comparison], runs: Sequence[RunResult]) -> None:
    """Held-out average and training reward over steps: a column per variant, a line per arm (the reference thicker)."""
    size = (1.6 + 4.4 * len(tables), 6.4)
    with _panels(folder / "curves", *size, 2, len(tables), sharey="row", sharex="col") as (figure, rows):
        for (above, below), table in zip(rows.T, tables, strict=True):
            by_arm = runs_by_arm(runs, table.variant)
            for place, arm in enumerate(line.arm for line in table.lines):
                group = [by_arm[arm][pair] for pair in table.pairs]
                steps = [step for step, _ in group[0].curve]
                averages = zip(*([value for _, value in run.curve] for run in group), strict=True)
                means = [mean_interval(values, confidence=study.confidence) for values in averages]
                line = {"color": f"C{place}", "linewidth": 2.4 if arm == table.reference else 1.4}
                above.plot(steps, [mean.mean for mean in means], marker="o", markersize=3.5, label=arm, **line)
                shift = BESIDE * (steps[-1] - steps[0]) * (place - (len(table.lines) - 1) / 2)
                low, high = [mean.low for mean in means], [mean.high for mean in means]
                above.vlines([step + shift for step in steps], low, high, color=f"C{place}", linewidth=0.9)
                rewards = [fmean(values) for values in zip(*(run.rewards for run in group), strict=True)]
                below.plot(*_smoothed(rewards), **line)
            above.set_title(table.variant)
            below.set_xlabel("training step")
        rows[0][0].set_ylabel("held-out average, %")
        rows[1][0].set_ylabel(f"training reward, %, mean of {WINDOW} steps")
        note = "bars: intervals over pairs, shifted so that arms do not overlap"
        figure.suptitle(note, fontsize=9)
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=9)


def _smoothed(values: Sequence[float]) -> tuple[range, Sequence[float]]:
    """The steps with a whole window around them, and the windows' means."""
    if len(values) < WINDOW:
        return range(1, len(values) + 1), values
    means = [fmean(values[at : at + WINDOW]) for at in range(len(values) - WINDOW + 1)]
    first = 1 + WINDOW // 2
    return range(first, first + len(means)), means


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


def draw_map(folder: Path, study: StudyConfig, cells: Sequence[MapCell]) -> None:
    """A panel per opponent: the reference minus it, variants by tables, blue where ahead and red where behind."""
    columns = [table.title for table in study.mapped.values()]
    rows = [(panel, row) for panel, of_panel in study.map.items() for row in of_panel]
    others = opponents(cells)
    widest = max(abs(gap.difference.mean) for cell in cells for gap in cell.against.values())
    high = (len(others) + 1) // 2
    size = (4.0 + 2.1 * len(columns), 1.0 + high * (1.0 + 0.36 * len(rows)))
    with _panels(folder / "map", *size, high, 2, sharey=True) as (figure, panels):
        for axes in panels.flat[len(others) :]:
            axes.set_visible(False)
        for axes, other in zip(panels.flat, others, strict=False):
            values = [[nan] * len(columns) for _ in rows]
            for cell in (cell for cell in cells if other in cell.against):
                gap, place = cell.against[other], (columns.index(cell.column), rows.index((cell.panel, cell.row)))
                values[place[1]][place[0]] = gap.difference.mean
                star, sure = "*" if gap.p < SIGNIFICANT else "", gap.difference.low > 0 or gap.difference.high < 0
                text = f"{gap.difference.mean:+.1f}{star}"
                axes.text(*place, text, ha="center", va="center", fontsize=8, weight="bold" if sure else "normal")
            axes.imshow(values, cmap="RdBu", vmin=-widest, vmax=widest, aspect="auto", alpha=0.75)
            axes.set_title(f"minus {other}", fontsize=10)
            axes.set_xticks(range(len(columns)), columns, fontsize=8, rotation=20)
            axes.set_yticks(range(len(rows)), [f"{row}, {panel}" for panel, row in rows], fontsize=8)
            axes.grid(visible=False)
        reference = {method(table.reference) for table in study.mapped.values()}
        note = f"bold: the interval excludes 0; *: Holm's p < {SIGNIFICANT} over the panel"
        figure.suptitle(f"{' or '.join(sorted(reference))} minus another method, points; {note}", fontsize=9)
