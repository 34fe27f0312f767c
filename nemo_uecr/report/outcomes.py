"""The outcome of each run for the page's template: accuracy, its paired change, the identities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.compare import differences_of
from nemo_uecr.report.charts import ticks
from nemo_uecr.report.markup import DASH, duration, points, signed_points
from nemo_uecr.stats import Difference
from nemo_uecr.telemetry.metric_table import identity_name
from nemo_uecr.telemetry.run_folder import RunFolder
from nemo_uecr.telemetry.sinks import Record

#: Evaluations shown of a single run, from first to last; the best is added.
SHOWN_EVALUATIONS = 9
#: Evaluations shown of each of several runs.
SHOWN_BESIDE = 2
AVERAGE = "Average"
HOLDS, VIOLATED, MONITORED, UNMEASURED = "holds", "violated", "monitored", "not measured"
#: The largest p-value of a clear change, and the seed of the test's sign changes.
UNCLEAR, SEED = 0.05, 42
FIRST_RATIO = "first_ratio", "the importance ratio of a batch's first update is 1", "policy/first_ratio_mean"


# Accuracy


class Outcome(NamedTuple):
    """First and last evaluation of a run so far, and the change."""

    ends: tuple[Record, ...]  # none, one or two
    lift: Difference | None  # last minus first, paired; None if problems or settings differ, or samples are missing


def outcome_of(run: RunFolder) -> Outcome:
    """The outcome of a run's evaluations so far."""
    ends = (*run.evaluations[:1], *run.evaluations[1:][-1:])
    return Outcome(ends, lift_of((run, ends[0]), (run, ends[1])) if len(ends) == 2 else None)


def lift_of(before: tuple[RunFolder, Record], after: tuple[RunFolder, Record]) -> Difference | None:
    """The paired difference of two evaluations, as in `evaluate compare`; None if they cannot be compared."""
    files = [run.path / "evaluations" / f"step-{record['step']:06d}.parquet" for run, record in (before, after)]
    try:
        return differences_of(*files, seed=SEED)["average"]
    except DataError:
        return None


def accuracy_tables(runs: Sequence[RunFolder]) -> dict[str, Any] | None:
    """avg@k and pass@k, a row per evaluation, a column per set; None before the first evaluation."""
    if not any(run.evaluations for run in runs):
        return None
    counts = sorted({int(record["samples"]) for run in runs for record in run.evaluations})
    sets = list(dict.fromkeys(name for run in runs for record in run.evaluations for name in record["sets"]))
    most = SHOWN_EVALUATIONS if len(runs) == 1 else SHOWN_BESIDE
    shown = [(colour, run, record) for colour, run in enumerate(runs) for record in shown_evaluations(run, most)]
    return {"counts": counts, "avg": _table(shown, [*sets, AVERAGE], "avg"), "pass": _table(shown, sets, "pass")}


def _table(shown: Sequence[tuple[int, RunFolder, Record]], columns: list[str], figure: str) -> dict[str, Any]:
    figures_of = [record["sets"] | {AVERAGE: record["average"]} for *_, record in shown]
    cells = [[figures.get(name) for name in columns] for figures in figures_of]
    best = [max(round(row[place][figure], 9) for row in cells if row[place]) for place in range(len(columns))]
    return {
        "columns": columns,
        "rows": [
            {
                "label": run.label,
                "colour": colour,
                "step": int(record["step"]),
                "first": not number or shown[number - 1][0] != colour,
                "cells": [
                    None if cell is None else {**cell, "value": cell[figure], "best": round(cell[figure], 9) == top}
                    for cell, top in zip(cells[number], best, strict=True)
                ],
            }
            for number, (colour, run, record) in enumerate(shown)
        ],
    }


def shown_evaluations(run: RunFolder, most: int) -> list[Record]:
    """``most`` evaluations of a run, spread from first to last, and the best; all if there are no more."""
    records = run.evaluations
    if len(records) <= most:
        return records
    last = len(records) - 1
    keep = {round(index * last / (most - 1)) for index in range(most)}
    keep.add(max(range(len(records)), key=lambda index: records[index]["average"]["avg"]))
    return [records[index] for index in sorted(keep)]


# The head of the page


def headline(runs: Sequence[RunFolder], outcomes: Sequence[Outcome]) -> Markup:
    """The outcome in one sentence."""
    if len(runs) > 1:
        return _headline_of_many(runs, outcomes)
    run, outcome = runs[0], outcomes[0]
    name = Markup('<em class="run-0">{}</em>').format(run.method)
    if len(outcome.ends) < 2:
        return name + f": {run.last_step} of {run.planned_steps} steps"
    before, after = (record["average"]["avg"] for record in outcome.ends)
    metric, span = f"avg@{outcome.ends[1]['samples']}", f"from {points(before)} to {points(after)} %"
    span += "" if run.complete else ", so far"
    change = after - before
    if round(change, 3) == 0 or (outcome.lift is not None and outcome.lift.p_value > UNCLEAR):
        return name + f": {metric} shows no clear change, {span}"
    verb = "raised" if change > 0 else "lowered"
    return name + f" {verb} {metric} by {points(abs(change))} points, {span}"


def _headline_of_many(runs: Sequence[RunFolder], outcomes: Sequence[Outcome]) -> Markup:
    ended = [(o.ends[1]["average"]["avg"], colour) for colour, o in enumerate(outcomes) if len(o.ends) == 2]
    if len(ended) < len(runs):
        return Markup("{} runs side by side").format(len(runs))
    ended.sort(key=lambda pair: pair[0], reverse=True)
    part = Markup('<span><em class="run-{}">{}</em> {}</span>')
    parts = Markup(", ").join(part.format(colour, runs[colour].label, points(value)) for value, colour in ended[:4])
    more = f" and {len(ended) - 4} more" if len(ended) > 4 else ""
    counts = sorted({int(outcome.ends[1]["samples"]) for outcome in outcomes})
    when = "after training" if all(run.complete for run in runs) else "at the last evaluation"
    return Markup("avg@{} {}, in %: ").format("/".join(map(str, counts)), when) + parts + more


def differences(runs: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """The paired difference of each run's last evaluation and the first run's."""
    if not runs[0].evaluations:
        return []
    first = runs[0], runs[0].evaluations[-1]
    return [
        {"label": run.label, "colour": colour, "lift": lift_of(first, (run, run.evaluations[-1]))}
        for colour, run in enumerate(runs)
        if colour > 0 and run.evaluations
    ]


def scale(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Before and after of every run as points with intervals on one axis; positions are percent of its width."""
    records = [record for outcome in outcomes for record in outcome.ends]
    if not records:
        return None
    low = max(0.0, min(record["average"]["low"] for record in records) - 0.02)
    high = min(1.0, max(record["average"]["high"] for record in records) + 0.02)
    axis = ticks(100 * low, 100 * max(high, low + 0.05), 6)
    left, width = axis[0] / 100, (axis[-1] - axis[0]) / 100

    def place(value: float) -> str:
        return f"{(value - left) / width * 100:.2f}%"

    def span(start: float, end: float) -> str:
        return f"left:{place(start)};width:{(end - start) / width * 100:.2f}%"

    rows = []
    for colour, outcome in enumerate(outcomes):
        averages = [record["average"] for record in outcome.ends]
        ends = sorted(average["avg"] for average in averages)
        marks = [
            {"kind": kind, "span": span(each["low"], each["high"]), "place": place(each["avg"]), "avg": each["avg"]}
            for kind, each in zip(("before", "after"), averages, strict=False)
        ]
        if marks:
            rows.append({"colour": colour, "travel": span(*ends) if len(ends) == 2 else None, "marks": marks})
    shown = [(place(mark / 100), f"{mark:g}") for mark in axis]
    return {"samples": records[0]["samples"], "rows": rows, "axis": shown}


def card_numbers(run: RunFolder, outcome: Outcome) -> list[tuple[str, str, str]]:
    """The numbers of a run's card: name, value, remark."""
    numbers = []
    for record in outcome.ends:
        average = record["average"]
        interval = f"{points(average['low'])} to {points(average['high'])}"
        numbers.append((f"avg@{record['samples']} at step {record['step']}", f"{points(average['avg'])} %", interval))
    if len(outcome.ends) == 2:
        before, after = (record["average"]["avg"] for record in outcome.ends)
        lift, interval = outcome.lift, ""
        if lift is not None:
            few = ", too few differ" if lift.few else ""
            interval = f"{signed_points(lift.low)} to {signed_points(lift.high)}, paired by problem{few}"
        numbers.append(("Change", f"{signed_points(after - before)} points", interval))
    numbers.append(("Steps", str(run.last_step), f"of {run.planned_steps}"))
    if run.has("time/step_s"):
        evaluating = sum(float(record["seconds"]) for record in run.evaluations)
        numbers.append(("Time", duration(run.wall_seconds), f"of it {duration(evaluating)} evaluation"))
    else:
        numbers.append(("Time", DASH, ""))
    judged = identity_results(run)
    broken = [each.name for each in judged if each.word == VIOLATED]
    holds = "✓ hold" if any(each.word == HOLDS for each in judged) else DASH
    numbers.append(("Identities", f"✗ {', '.join(broken)} violated" if broken else holds, ""))
    return numbers


def status(run: RunFolder) -> tuple[str, str]:
    """Style and words of the run's state."""
    if run.failure is not None:
        return "stopped", f"✗ stopped at step {run.failure.get('step', '?')}"
    if run.complete:
        return "complete", "✓ complete"
    if run.last_step < run.planned_steps:
        return "open", f"… step {run.last_step} of {run.planned_steps}"
    return "open", "… final evaluation missing"


def method_equation(run: RunFolder) -> str:
    """The method's equation on one line; empty for an unknown method."""
    return _declared(run)[0]


def _declared(run: RunFolder) -> tuple[str, Sequence[str], Sequence[str]]:
    """The method's equation and the identities that it declares and monitors; a user's file is not run for them."""
    from nemo_uecr.core.methods import METHODS

    if run.method in METHODS:
        method = METHODS[run.method]
        return method.equation(), method.identities, method.monitored
    recorded = run.provenance.get("method", {"equation": "", "identities": (), "monitored": ()})
    return recorded["equation"], recorded["identities"], recorded["monitored"]


def objective(run: RunFolder) -> list[str]:
    """The loss and the settings, without the method's equation."""
    known, whole = method_equation(run), str(run.provenance.get("objective", ""))
    parts = whole.split(known) if known else [whole]
    return [shown for part in parts if (shown := part.strip("; "))]


# Identities


class IdentityResult(NamedTuple):
    """One identity over a run."""

    name: str
    statement: str
    tolerance: float | None  # largest allowed residual; None if only monitored
    worst: float | None  # largest residual; None if not measured
    step: int | None  # of the largest residual
    word: str  # the result: holds, violated, monitored or not measured


def identity_results(run: RunFolder) -> list[IdentityResult]:
    """The identities that the run's method declares or monitors, and the first ratio."""
    from nemo_uecr.core.invariants import EXACT, IDENTITIES

    _, declared, monitored = _declared(run)
    judged = []
    for name in (*declared, *monitored):
        tolerance = 0.0 if name in EXACT else run.tolerances.get(name)
        allowed = tolerance if name in declared else None
        judged.append(_identity_result(run, name, IDENTITIES[name][0], identity_name(name), allowed))
    return [*judged, _identity_result(run, *FIRST_RATIO, run.tolerances.get(FIRST_RATIO[0]))]


def _identity_result(run: RunFolder, name: str, statement: str, metric: str, tolerance: float | None) -> IdentityResult:
    steps, values = run.values(metric)
    if not values:
        return IdentityResult(name, statement, tolerance, None, None, UNMEASURED)
    worst, step = max(zip(map(abs, values), steps, strict=True), key=lambda pair: pair[0])
    word = MONITORED if tolerance is None else HOLDS if worst <= tolerance else VIOLATED
    return IdentityResult(name, statement, tolerance, worst, step, word)
