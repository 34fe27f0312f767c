"""The head of the page: what ran, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nemo_uecr.report.accuracy import Lift, difference_of, lift_of
from nemo_uecr.report.identities import HOLDS, VIOLATED, verdicts
from nemo_uecr.report.lines import ticks
from nemo_uecr.report.markup import DASH, duration, equation, points, shown_change, signed_points, text
from nemo_uecr.report.section import run_key
from nemo_uecr.telemetry.run_folder import RunFolder

SEEDS = "The intervals are over problems; another training seed may move a run by more."


@dataclass(frozen=True)
class Outcome:
    """First and last evaluation of a run.

    Attributes:
        samples: k of avg@k.
        before: average of the first evaluation with its interval; None when there is none.
        after: the same of the last; None when there is only one.
        lift: the change; None when there is none.
    """

    samples: int | None
    before: dict[str, float] | None
    after: dict[str, float] | None
    lift: Lift | None


def outcome_of(run: RunFolder) -> Outcome:
    """What the evaluations of a run say so far."""
    records = run.evaluations
    if not records:
        return Outcome(None, None, None, None)
    after = records[-1]["average"] if len(records) > 1 else None
    return Outcome(int(records[-1]["samples"]), records[0]["average"], after, lift_of(run))


def masthead(runs: list[RunFolder]) -> str:
    """Headline, the change of every run on one scale, and a card a run."""
    outcomes = [outcome_of(run) for run in runs]
    cards = "".join(_card(index, run, outcome) for index, (run, outcome) in enumerate(zip(runs, outcomes, strict=True)))
    many = " many" if len(runs) > 1 else ""
    return (
        '<header class="masthead"><p class="kicker">nemo_uecr <span>run report</span></p>'
        f"<h1>{headline(runs, outcomes)}</h1>{_scale(runs, outcomes)}{_differences(runs, outcomes)}"
        f'<div class="cards{many}">{cards}</div></header>'
    )


def headline(runs: list[RunFolder], outcomes: list[Outcome]) -> str:
    """One sentence that the figures below carry."""
    if len(runs) > 1:
        return _headline_of_many(runs, outcomes)
    run, outcome = runs[0], outcomes[0]
    name = f'<em class="run-0">{text(run.method)}</em>'
    if outcome.lift is None or outcome.before is None or outcome.after is None:
        return f"{name}: {run.last_step} of {run.planned_steps} steps"
    change = points(abs(shown_change(outcome.before["avg"], outcome.after["avg"])))
    figure = f"avg@{outcome.samples}"
    span = f"from {points(outcome.before['avg'])} to {points(outcome.after['avg'])} %"
    span += "" if run.complete else ", so far"
    if outcome.lift.low is not None and not outcome.lift.clear:
        return f"{name}: {figure} shows no clear change, {span}"
    verb = "raised" if outcome.lift.change > 0 else "lowered"
    return f"{name} {verb} {figure} by {change} points, {span}"


def _headline_of_many(runs: list[RunFolder], outcomes: list[Outcome]) -> str:
    ended = [(o.after["avg"], run) for run, o in zip(runs, outcomes, strict=True) if o.after is not None]
    if len(ended) < len(runs):
        return f"{len(runs)} runs side by side"
    ended.sort(key=lambda pair: pair[0], reverse=True)
    parts = ", ".join(
        f'<span><em class="run-{runs.index(run)}">{text(run.label)}</em> {points(value)}</span>'
        for value, run in ended[:4]
    )
    more = f" and {len(ended) - 4} more" if len(ended) > 4 else ""
    counts = sorted({outcome.samples for outcome in outcomes if outcome.samples is not None})
    when = "after training" if all(run.complete for run in runs) else "at the last evaluation"
    return f"avg@{'/'.join(map(str, counts))} {when}, in %: {parts}{more}"


def _differences(runs: list[RunFolder], outcomes: list[Outcome]) -> str:
    """How the other runs end against the first, with paired intervals: two points on a scale do not say that."""
    ends_of = [outcome.after or outcome.before for outcome in outcomes]
    parts = []
    for index, run in enumerate(runs[1:], start=1):
        difference = difference_of(runs[0], run)
        first, last = ends_of[0], ends_of[index]
        if first is None or last is None or difference is None or difference.low is None or difference.high is None:
            continue
        change = signed_points(shown_change(first["avg"], last["avg"]))
        ends = f"{signed_points(difference.low)} to {signed_points(difference.high)}"
        word = "" if difference.clear else ", no clear difference"
        parts.append(f"<span>{run_key(run.label, index)} {change} points ({ends}{word})</span>")
    if not parts:
        return ""
    against = run_key(runs[0].label, 0)
    return (
        f'<p class="differences">Last evaluation against {against}, paired by problem: {"; ".join(parts)}. {SEEDS}</p>'
    )


def _scale(runs: list[RunFolder], outcomes: list[Outcome]) -> str:
    """Before and after of every run as points with intervals on one common axis."""
    records = [record for outcome in outcomes for record in (outcome.before, outcome.after) if record is not None]
    if not records:
        return ""
    low = max(0.0, min(record["low"] for record in records) - 0.02)
    high = min(1.0, max(record["high"] for record in records) + 0.02)
    marks = ticks(100 * low, 100 * max(high, low + 0.05), 6)
    ends = (marks[0] / 100, marks[-1] / 100)
    rows = "".join(
        _scale_row(index, run, outcome, ends, named=len(runs) > 1)
        for index, (run, outcome) in enumerate(zip(runs, outcomes, strict=True))
        if outcome.before is not None
    )
    axis = "".join(f'<span style="left:{_place(mark / 100, ends)}">{mark:g}</span>' for mark in marks)
    rules = "".join(f'<i style="left:{_place(mark / 100, ends)}"></i>' for mark in marks)
    count = next(outcome.samples for outcome in outcomes if outcome.samples is not None)
    named = " named" if len(runs) > 1 else ""
    return (
        f'<div class="scale{named}"><p class="scale-title">avg@{count} over all sets, % '
        '<span class="legend-entry"><span class="legend-dot hollow"></span> first evaluation</span> '
        '<span class="legend-entry"><span class="legend-dot"></span> last</span> '
        '<span class="legend-entry"><span class="legend-bar"></span> 95% interval</span></p>'
        f'<div class="scale-body"><div class="rules" aria-hidden="true">{rules}</div>{rows}'
        f'<div class="axis" aria-hidden="true">{axis}</div></div></div>'
    )


def _scale_row(index: int, run: RunFolder, outcome: Outcome, ends: tuple[float, float], *, named: bool) -> str:
    label = run_key(run.label, index) if named else ""
    parts = []
    if outcome.before is not None and outcome.after is not None:
        left, right = sorted((outcome.before["avg"], outcome.after["avg"]))
        width = (right - left) / (ends[1] - ends[0]) * 100
        parts.append(f'<i class="travel" style="left:{_place(left, ends)};width:{width:.2f}%"></i>')
    for record, kind in ((outcome.before, "before"), (outcome.after, "after")):
        if record is None:
            continue
        width = (record["high"] - record["low"]) / (ends[1] - ends[0]) * 100
        parts.append(f'<i class="span {kind}" style="left:{_place(record["low"], ends)};width:{width:.2f}%"></i>')
        parts.append(
            f'<i class="point {kind}" style="left:{_place(record["avg"], ends)}"><b>{points(record["avg"])}</b></i>'
        )
    return (
        f'<div class="scale-row run-{index}"><div class="scale-name">{label}</div>'
        f'<div class="track">{"".join(parts)}</div></div>'
    )


def _place(value: float, ends: tuple[float, float]) -> str:
    return f"{(value - ends[0]) / (ends[1] - ends[0]) * 100:.2f}%"


def _card(index: int, run: RunFolder, outcome: Outcome) -> str:
    figures = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _figures(run, outcome))
    notes = "".join(f'<p class="warning">{text(note)}</p>' for note in run.notes)
    if run.failure is not None:
        notes += f'<p class="warning">{text(run.failure.get("error", "The run left no reason."))}</p>'
    return (
        f'<article class="card run-{index}"><div class="card-head">{run_key(run.label, index)}{_status(run)}</div>'
        f'<p class="method"><b>{text(run.method)}</b> <span>{equation(method_equation(run))}</span></p>'
        f"{_objective(run)}<dl>{figures}</dl>{notes}</article>"
    )


def _objective(run: RunFolder) -> str:
    """The loss and the values of the settings; the advantage stands above it already."""
    objective = str(run.provenance.get("objective", ""))
    known = method_equation(run)
    parts = objective.split(known) if known else [objective]
    shown = [part.strip("; ") for part in parts]
    return "".join(f'<p class="objective">{equation(part)}</p>' for part in shown if part)


def method_equation(run: RunFolder) -> str:
    """The method's equation on one line; empty for a method this version does not know."""
    from nemo_uecr.core.methods import METHODS

    method = METHODS.get(run.method)
    return "" if method is None else method.equation


def _figures(run: RunFolder, outcome: Outcome) -> list[tuple[str, str]]:
    found = []
    if outcome.before is not None:
        figure = f"avg@{outcome.samples}"
        found.append((f"{figure} at step {run.evaluations[0]['step']}", _interval(outcome.before)))
        if outcome.after is not None:
            found.append((f"{figure} at step {run.evaluations[-1]['step']}", _interval(outcome.after)))
    if outcome.lift is not None and outcome.before is not None and outcome.after is not None:
        shown = f"{signed_points(shown_change(outcome.before['avg'], outcome.after['avg']))} points"
        if outcome.lift.low is not None and outcome.lift.high is not None:
            ends = f"{signed_points(outcome.lift.low)} to {signed_points(outcome.lift.high)}"
            shown += f" <small>{ends}, paired by problem</small>"
        found.append(("Change", shown))
    found.append(("Steps", f"{run.last_step} <small>of {run.planned_steps}</small>"))
    found.append(("Time", _time(run)))
    found.append(("Identities", _identities(run)))
    return found


def _identities(run: RunFolder) -> str:
    found = verdicts(run)
    broken = [verdict.name for verdict in found if verdict.word == VIOLATED]
    if broken:
        return f"✗ {text(', '.join(broken))} violated"
    return "✓ hold" if any(verdict.word == HOLDS for verdict in found) else DASH


def _interval(record: dict[str, Any]) -> str:
    return f"{points(record['avg'])} % <small>{points(record['low'])} to {points(record['high'])}</small>"


def _time(run: RunFolder) -> str:
    """Wall time of the run, and how much of it went into evaluation; a step's time holds its evaluation."""
    _, steps = run.values("time/step_s")
    evaluation = sum(float(record["seconds"]) for record in run.evaluations)
    before = sum(float(record["seconds"]) for record in run.evaluations if record["step"] == 0)
    if not steps:
        return DASH
    return f"{duration(sum(steps) + before)} <small>of it {duration(evaluation)} evaluation</small>"


def _status(run: RunFolder) -> str:
    if run.failure is not None:
        step = run.failure.get("step", "?")
        return f'<span class="status stopped">✗ stopped at step {text(step)}</span>'
    if run.complete:
        return '<span class="status complete">✓ complete</span>'
    if run.last_step < run.planned_steps:
        return f'<span class="status open">… step {run.last_step} of {run.planned_steps}</span>'
    return '<span class="status open">… final evaluation missing</span>'
