"""Training curves: the paper's training-dynamics figure first, every other metric behind a fold.

References:
    fig:qwen17b-training (reward, response length, actor entropy, gradient norm, advantage statistics,
    validation accuracy).
"""

from __future__ import annotations

from nemo_uecr.report.lines import LARGE, SMALL, SMOOTH_FROM, Panel, Series, smoothing_window
from nemo_uecr.report.markup import text
from nemo_uecr.report.section import Section, figure, readings, run_key
from nemo_uecr.telemetry.run_folder import RunFolder

#: (metric, title, unit, metrics of the band's two ends, shown in percent)
DYNAMICS: tuple[tuple[str, str, str, tuple[str, str] | None, bool], ...] = (
    ("reward/task_mean", "Training reward", "mean verifier reward", None, False),
    ("response/length_mean", "Response length", "tokens, mean", None, False),
    ("policy/entropy", "Actor entropy", "nats", None, False),
    ("policy/grad_norm", "Gradient norm", "L2", None, False),
    ("advantage/abs_mean", "Advantage size", "mean |A|", None, False),
    ("advantage/std", "Advantage spread", "standard deviation", None, False),
    ("advantage/mean", "Advantage mean and range", "band: min to max", ("advantage/min", "advantage/max"), False),
    ("response/truncated_share", "Truncated responses", "share", None, True),
)
#: These are read elsewhere on the page, or are constants of the run.
SHOWN_ELSEWHERE = ("group/", "identity/", "advantage/task_abs_mean", "advantage/teacher_abs_mean")


def curves_section(runs: list[RunFolder]) -> Section:
    """Curves of all runs over each other, one small chart a quantity."""
    panels = [panel for entry in DYNAMICS if (panel := _dynamics_panel(runs, *entry, LARGE)) is not None]
    validation = validation_panel(runs)
    if validation is not None:
        panels.insert(min(1, len(panels)), validation)
    if not panels:
        return Section("curves", "Training curves", '<p class="empty">No step has been written yet.</p>')
    others = _other_panels(runs)
    body = [_legend(runs), f'<div class="charts">{"".join(map(figure, panels))}</div>', _note(runs)]
    if others:
        body.append(
            f"<details><summary>Every other metric ({len(others)})</summary>"
            f'<div class="charts small">{"".join(map(figure, others))}</div></details>'
        )
    return Section("curves", "Training curves", "".join(body), charts=readings(panels + others))


def validation_panel(runs: list[RunFolder]) -> Panel | None:
    """avg@k over the named sets at every evaluation, with its 95% interval."""
    series = []
    for colour, run in enumerate(runs):
        records = run.evaluations
        if not records:
            continue
        average = {end: [float(record["average"][end]) for record in records] for end in ("avg", "low", "high")}
        x = [int(record["step"]) for record in records]
        series.append(Series(run.label, colour, x, average["avg"], average["low"], average["high"]))
    if not series:
        return None
    counts = sorted({int(record["samples"]) for run in runs for record in run.evaluations})
    title = f"Validation accuracy, avg@{'/'.join(map(str, counts))}"
    return Panel("validation", title, "%, with 95% interval", tuple(series), points=True, percent=True, runs=True)


def _dynamics_panel(
    runs: list[RunFolder], metric: str, title: str, unit: str, ends: tuple[str, str] | None, percent: bool, most: int
) -> Panel | None:
    series = []
    for colour, run in enumerate(runs):
        if not run.has(metric):
            continue
        x, y = run.values(metric)
        banded = ends is not None and all(len(run.values(end)[1]) == len(y) for end in ends)
        low, high = (run.values(ends[0])[1], run.values(ends[1])[1]) if banded and ends else (None, None)
        series.append(Series(run.label, colour, x, y, low, high))
    if not series:
        return None
    return Panel(metric, title, unit, tuple(series), percent=percent, zero=ends is not None, runs=True, most=most)


def _other_panels(runs: list[RunFolder]) -> list[Panel]:
    shown = {entry[0] for entry in DYNAMICS} | {end for entry in DYNAMICS for end in entry[3] or ()}
    names = sorted({name for run in runs for record in run.steps for name in record} - shown - {"step"})
    told = metric_captions()
    panels = []
    for name in names:
        if name.startswith(SHOWN_ELSEWHERE):
            continue
        panel = _dynamics_panel(runs, name, name, told.get(name, ""), None, False, SMALL)
        if panel is not None:
            panels.append(panel)
    return panels


def metric_captions() -> dict[str, str]:
    """Meaning and unit of every metric, from the one table of metrics."""
    from nemo_uecr.telemetry.names import METRICS

    return {
        name: metric.meaning
        if metric.unit == "1" or metric.unit in metric.meaning
        else f"{metric.meaning}, {metric.unit}"
        for name, metric in METRICS.items()
    }


def _legend(runs: list[RunFolder]) -> str:
    if len(runs) == 1:
        return ""
    keys = "".join(
        f'<button type="button" class="toggle" aria-pressed="true" data-run="{colour}">'
        f"{run_key(run.label, colour)}{_method(run)}</button>"
        for colour, run in enumerate(runs)
    )
    return f'<div class="legend" role="group" aria-label="Runs shown in the charts">{keys}</div>'


def _method(run: RunFolder) -> str:
    return "" if run.method == run.label else f" <small>{text(run.method)}</small>"


def _note(runs: list[RunFolder]) -> str:
    longest = max(len(run.steps) for run in runs)
    drawn = "One point a step."
    if longest >= SMOOTH_FROM:
        drawn = f"Thin line: every step. Bold line: centred mean over {smoothing_window(longest)} steps."
    return f'<p class="note">{drawn} Point at a chart, or focus it and use the arrow keys, to read values.</p>'
