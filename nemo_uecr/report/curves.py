"""The page's charts: training dynamics, every other metric, and the groups of each run.

References:
    fig:qwen17b-training (reward, response length, actor entropy, gradient norm, advantage statistics,
    validation accuracy).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from nemo_uecr.report.charts import LARGE, SMALL, SMOOTH_FROM, Panel, Series, smoothing_window
from nemo_uecr.report.markup import number, points
from nemo_uecr.telemetry.metric_table import metric_of
from nemo_uecr.telemetry.run_folder import RunFolder

#: Metric, title, unit, metrics of the band's two ends, shown in percent.
Entry = tuple[str, str, str, tuple[str, str] | None, bool]
DYNAMICS: tuple[Entry, ...] = (
    ("reward/task_mean", "Training reward", "mean task reward", None, False),
    ("response/length_mean", "Response length", "tokens, mean", None, False),
    ("policy/entropy", "Actor entropy", "nats", None, False),
    ("policy/grad_norm", "Gradient norm", "L2", None, False),
    ("advantage/abs_mean", "Advantage size", "mean |A|", None, False),
    ("advantage/std", "Advantage spread", "standard deviation", None, False),
    ("advantage/mean", "Advantage mean and range", "band: min to max", ("advantage/min", "advantage/max"), False),
    ("response/truncated_share", "Truncated responses", "share", None, True),
    ("trust/kappa", "How far the teacher is trusted", "kappa; 0: GRPO, 1: UECR and every token followed", None, False),
)
#: Metrics shown elsewhere on the page, or constant.
SHOWN_ELSEWHERE = ("group/", "identity/", "advantage/task_abs_mean", "advantage/teacher_abs_mean")
#: Bottom to top in the stacked chart: (metric, name, style)
SHARES = (
    ("group/all_right_share", "all right", "right"),
    ("group/mixed_share", "mixed", "mixed"),
    ("group/all_wrong_share", "all wrong", "wrong"),
)
DEGENERATE = ("group/degenerate_share", "degenerate")
BELOW_NOISE = ("group/below_noise_share", "below scoring noise")
#: (metric, name, formula of the legend)
COMPONENTS = (
    ("advantage/task_abs_mean", "verifier", "|A^task|U|"),
    ("advantage/teacher_abs_mean", "teacher", "|alpha A^T|U|"),
    ("advantage/degenerate_abs_mean", "degenerate groups", "|A|"),
)
#: Means over the steps for each teacher: (metric, name)
BY_TEACHER = (
    ("response_share", "share of responses"),
    ("gap_mean", "gap"),
    ("gap_std", "its std"),
    ("entropy_mean", "entropy"),
    ("top1_agreement", "top-1 agreement"),
    ("top20_overlap", "overlap of the top 20"),
    ("reward_range_mean", "range of R^T in a group"),
)
#: Charts of a run's groups, in the order of the page; None where the run lacks their metrics.
PARTS = ("shares", "components", "teachers")
TEACHER = re.compile("teacher/[^/]+/gap_mean$")


def curves(runs: Sequence[RunFolder]) -> tuple[list[Panel], list[Panel]]:
    """The charts of training dynamics, and those of every other metric, with a line per run."""
    panels = [panel for entry in DYNAMICS if (panel := _panel(runs, entry, LARGE)) is not None]
    validation = validation_panel(runs)
    if validation is not None:
        panels.insert(min(1, len(panels)), validation)
    shown = {entry[0] for entry in DYNAMICS} | {end for entry in DYNAMICS for end in entry[3] or ()}
    names = sorted({name for run in runs for record in run.steps for name in record} - shown - {"step"})
    others = [
        _panel(runs, (name, name, _caption(name), None, False), SMALL)
        for name in names
        if not name.startswith(SHOWN_ELSEWHERE)
    ]
    return panels, [panel for panel in others if panel is not None]


def validation_panel(runs: Sequence[RunFolder]) -> Panel | None:
    """avg@k over the sets at every evaluation, with its 95% interval."""
    series = []
    for colour, run in enumerate(runs):
        records = run.evaluations
        if records:
            ends = {end: [float(record["average"][end]) for record in records] for end in ("avg", "low", "high")}
            x = [int(record["step"]) for record in records]
            series.append(Series(run.label, colour, x, ends["avg"], ends["low"], ends["high"]))
    if not series:
        return None
    counts = sorted({int(record["samples"]) for run in runs for record in run.evaluations})
    title = f"Validation accuracy, avg@{'/'.join(map(str, counts))}"
    return Panel("validation", title, "%, with 95% interval", tuple(series), points=True, percent=True, runs=True)


def _panel(runs: Sequence[RunFolder], entry: Entry, most: int) -> Panel | None:
    metric, title, unit, ends, percent = entry
    series = []
    for colour, run in enumerate(runs):
        if run.has(metric):
            x, y = run.values(metric)
            low, high = (None, None) if ends is None else (run.values(end)[1] for end in ends)
            series.append(Series(run.label, colour, x, y, low, high))
    if not series:
        return None
    return Panel(metric, title, unit, tuple(series), percent=percent, zero=ends is not None, runs=True, most=most)


def _caption(name: str) -> str:
    metric = metric_of(name)
    if metric is None:
        return ""
    has_unit = metric.unit == "1" or metric.unit in metric.meaning
    return metric.meaning if has_unit else f"{metric.meaning}, {metric.unit}"


def drawn_note(runs: Sequence[RunFolder]) -> str:
    """A note on the lines of the charts."""
    longest = max(len(run.steps) for run in runs)
    if longest < SMOOTH_FROM:
        return "One point per step."
    return f"Thin line: every step. Bold line: centred mean over {smoothing_window(longest)} steps."


def groups(run: RunFolder, colour: int) -> dict[str, Any]:
    """Shares of group kinds with their means over the steps, the sizes of PUU's components, and each teacher's gap."""
    charts: dict[str, Any] = {"label": run.label, "colour": colour, **dict.fromkeys(PARTS)}
    names = sorted({name.split("/")[1] for record in run.steps for name in record if TEACHER.match(name)})
    if names:
        gaps = tuple(Series(name, place, *run.values(f"teacher/{name}/gap_mean")) for place, name in enumerate(names))
        charts["teachers"] = Panel(f"teachers-{colour}", "Gap by teacher", "nats, mean over tokens", gaps, zero=True)
        charts["by_teacher"] = [(name, place, _means_of_teacher(run, name)) for place, name in enumerate(names)]
    if all(run.has(metric) for metric, *_ in SHARES):
        metrics = [(metric, name) for metric, name, _ in SHARES] + [DEGENERATE] * run.has(DEGENERATE[0])
        series = tuple(Series(name, place, *run.values(metric)) for place, (metric, name) in enumerate(metrics))
        charts["shares"] = Panel(
            f"groups-{colour}", "Kinds of groups", "share of groups", series,
            percent=True, stacked=tuple(style for *_, style in SHARES),
        )  # fmt: skip
        charts["keys"] = [(style, name, _mean(run, metric)) for metric, name, style in SHARES]
        charts["others"] = [(name, _mean(run, metric)) for metric, name in (DEGENERATE, BELOW_NOISE) if run.has(metric)]
    series = tuple(
        Series(name, place, *run.values(metric))
        for place, (metric, name, _) in enumerate(COMPONENTS)
        if run.has(metric)
    )
    if series:
        name, unit = f"components-{colour}", "mean absolute value"
        charts["components"] = Panel(name, "Advantage by component", unit, series, zero=True)
        unified = run.has("advantage/unified_abs_mean")  # elsewhere the task advantage has a scale of its own
        charts["formulas"] = [formula if unified else "" for *_, formula in COMPONENTS]
    return charts


def _means_of_teacher(run: RunFolder, teacher: str) -> str:
    keys = {f"teacher/{teacher}/{part}": label for part, label in BY_TEACHER}
    return ", ".join(f"{label} {number(fmean(run.values(key)[1]))}" for key, label in keys.items() if run.has(key))


def _mean(run: RunFolder, metric: str) -> str:
    return f"{points(fmean(run.values(metric)[1]))} %"
