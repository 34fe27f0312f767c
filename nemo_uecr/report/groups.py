"""Groups over the steps: how many teach the verifier nothing, and which component carries the advantage."""

from __future__ import annotations

from nemo_uecr.report.chart import axis_marks
from nemo_uecr.report.lines import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Panel, Series, axes_of
from nemo_uecr.report.markup import equation, points, text
from nemo_uecr.report.section import Section, figure, readings, run_key
from nemo_uecr.telemetry.run_folder import RunFolder

#: Bottom to top in the stacked chart: (metric, name, style)
SHARES = (
    ("group/all_right_share", "all right", "right"),
    ("group/mixed_share", "mixed", "mixed"),
    ("group/all_wrong_share", "all wrong", "wrong"),
)
DEGENERATE = "group/degenerate_share"
#: (metric, name, formula of the legend)
COMPONENTS = (
    ("advantage/task_abs_mean", "verifier", "|A^task|U|"),
    ("advantage/teacher_abs_mean", "teacher", "|alpha A^T|U|"),
    ("advantage/degenerate_abs_mean", "degenerate groups", "|A|"),
)


def groups_section(runs: list[RunFolder]) -> Section:
    """One row a run: shares of group kinds, and the sizes of PUU's two components."""
    rows, panels = [], []
    for index, run in enumerate(runs):
        shares, components = _share_panel(run, index), _component_panel(run, index)
        panels += [panel for panel in (shares, components) if panel is not None]
        if shares is None and components is None:
            continue
        name = f"<h3>{run_key(run.label, index)}</h3>" if len(runs) > 1 else ""
        charts = _share_figure(run, shares) if shares is not None else ""
        charts += _component_figure(run, components) if components is not None else ""
        rows.append(f'<div class="run-row">{name}<div class="charts two">{charts}</div></div>')
    if not rows:
        return Section("groups", "Groups", '<p class="empty">No step has been written yet.</p>')
    note = (
        '<p class="note">A degenerate group (all right or all wrong) gives the verifier nothing to compare: its '
        "advantage is the standardised teacher score alone, or zero in a method without a teacher.</p>"
    )
    return Section("groups", "Groups", note + "".join(rows), charts=readings(panels))


def _share_panel(run: RunFolder, index: int) -> Panel | None:
    metrics = [(metric, name) for metric, name, _ in SHARES if run.has(metric)]
    if len(metrics) < len(SHARES):
        return None
    if run.has(DEGENERATE):
        metrics.append((DEGENERATE, "degenerate"))
    series = tuple(Series(name, colour, *run.values(metric)) for colour, (metric, name) in enumerate(metrics))
    return Panel(f"groups-{index}", "Kinds of groups", "share of groups", series, percent=True, full=True)


def _component_panel(run: RunFolder, index: int) -> Panel | None:
    series = tuple(
        Series(name, colour, *run.values(metric))
        for colour, (metric, name, _) in enumerate(COMPONENTS)
        if run.has(metric)
    )
    if not series:
        return None
    return Panel(f"components-{index}", "Advantage by component", "mean absolute value", series, zero=True)


def _share_figure(run: RunFolder, panel: Panel) -> str:
    keys = "".join(
        f'<span class="share {style}"><i></i>{name} {_mean(run, metric)}</span>' for metric, name, style in SHARES
    )
    degenerate = f"<span>degenerate {_mean(run, DEGENERATE)}</span>" if run.has(DEGENERATE) else ""
    noise = "group/below_noise_share"
    below = f"<span>below scoring noise {_mean(run, noise)}</span>" if run.has(noise) else ""
    chart = figure(panel, drawing=_stacked(panel))
    return f'<div>{chart}<p class="keys">Mean over steps: {keys}{degenerate}{below}</p></div>'


def _component_figure(run: RunFolder, panel: Panel) -> str:
    unified = run.has("advantage/unified_abs_mean")  # elsewhere the task advantage has a scale of its own
    formulas = [equation(formula) if unified else "" for *_, formula in COMPONENTS]
    keys = "".join(f"<span>{run_key(line.label, line.colour)} {formulas[line.colour]}</span>" for line in panel.series)
    return f'<div>{figure(panel)}<p class="keys">{keys}</p></div>'


def _mean(run: RunFolder, metric: str) -> str:
    _, values = run.values(metric)
    return f"<b>{points(sum(values) / len(values))} %</b>"


def _stacked(panel: Panel) -> str:
    """Areas from 0 to 1, stacked in the order of `SHARES`."""
    steps = panel.series[0].x
    axes = axes_of(panel)
    floor = [0.0] * len(steps)
    areas = []
    for line, (_, name, style) in zip(panel.series, SHARES, strict=False):
        top = [low + value for low, value in zip(floor, line.y, strict=True)]
        corners = [*zip(steps, top, strict=True), *reversed(list(zip(steps, floor, strict=True)))]
        path = " ".join(f"{axes.x(x):.1f},{axes.y(min(1.0, value)):.1f}" for x, value in corners)
        areas.append(f'<polygon class="area {style}" points="{path}"><title>{text(name)}</title></polygon>')
        floor = top
    frame = (
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - BOTTOM - TOP}"/>'
    )
    label = text(f"{panel.title} over training steps")
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f'{frame}{"".join(areas)}{axis_marks(axes, percent=True, rules=False)}<g class="cursor"></g></svg>'
    )
