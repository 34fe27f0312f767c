"""The outcome of each run for the page's template: accuracy, its paired change, the identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.compare import compare
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
    """First and last evaluation of a run, and the change; None if there are fewer than two evaluations."""

    samples: int | None  # k of avg@k
    before: Mapping[str, float] | None  # average with its interval
    after: Mapping[str, float] | None
    lift: Difference | None  # last minus first, paired; None if problems or settings differ, or samples are missing


def outcome_of(run: RunFolder) -> Outcome:
    """The outcome of a run's evaluations so far."""
    if not run.evaluations:
        return Outcome(None, None, None, None)
    first, last = run.evaluations[0], run.evaluations[-1]
    if first is last:
        return Outcome(int(first["samples"]), first["average"], None, None)
    return Outcome(int(last["samples"]), first["average"], last["average"], lift_of((run, first), (run, last)))


def lift_of(before: tuple[RunFolder, Record], after: tuple[RunFolder, Record]) -> Difference | None:
    """The paired difference of two evaluations, as in `evaluate compare`; None if they cannot be compared."""
    files = [run.path / "evaluations" / f"step-{record['step']:06d}.jsonl" for run, record in (before, after)]
    try:
        return compare(*files, seed=SEED)["average"]
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
    if outcome.before is None or outcome.after is None:
        return name + f": {run.last_step} of {run.planned_steps} steps"
    span = f"from {points(outcome.before['avg'])} to {points(outcome.after['avg'])} %"
    span += "" if run.complete else ", so far"
    change = outcome.after["avg"] - outcome.before["avg"]
    if round(change, 3) == 0 or (outcome.lift is not None and outcome.lift.p_value > UNCLEAR):
        return name + f": avg@{outcome.samples} shows no clear change, {span}"
    verb = "raised" if change > 0 else "lowered"
    return name + f" {verb} avg@{outcome.samples} by {points(abs(change))} points, {span}"


def _headline_of_many(runs: Sequence[RunFolder], outcomes: Sequence[Outcome]) -> Markup:
    ended = [(o.after["avg"], colour) for colour, o in enumerate(outcomes) if o.after is not None]
    if len(ended) < len(runs):
        return Markup("{} runs side by side").format(len(runs))
    ended.sort(key=lambda pair: pair[0], reverse=True)
    part = Markup('<span><em class="run-{}">{}</em> {}</span>')
    parts = Markup(", ").join(part.format(colour, runs[colour].label, points(value)) for value, colour in ended[:4])
    more = f" and {len(ended) - 4} more" if len(ended) > 4 else ""
    counts = sorted({outcome.samples for outcome in outcomes if outcome.samples is not None})
    when = "after training" if all(run.complete for run in runs) else "at the last evaluation"
    return Markup("avg@{} {}, in %: ").format("/".join(map(str, counts)), when) + parts + more


def differences(runs: Sequence[RunFolder], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The paired difference of each run's last evaluation and the first run's."""
    ends = [outcome.after or outcome.before for outcome in outcomes]
    return [
        {
            "label": run.label,
            "colour": colour,
            "lift": lift_of((runs[0], runs[0].evaluations[-1]), (run, run.evaluations[-1])),
        }
        for colour, run in enumerate(runs)
        if colour > 0 and ends[0] is not None and ends[colour] is not None
    ]


def scale(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Before and after of every run as points with intervals on one axis; positions are percent of its width."""
    records = [record for outcome in outcomes for record in (outcome.before, outcome.after) if record is not None]
    if not records:
        return None
    low = max(0.0, min(record["low"] for record in records) - 0.02)
    high = min(1.0, max(record["high"] for record in records) + 0.02)
    marks = ticks(100 * low, 100 * max(high, low + 0.05), 6)
    left, width = marks[0] / 100, (marks[-1] - marks[0]) / 100

    def place(value: float) -> str:
        return f"{(value - left) / width * 100:.2f}%"

    def span(start: float, end: float) -> str:
        return f"left:{place(start)};width:{(end - start) / width * 100:.2f}%"

    rows = []
    for colour, outcome in enumerate(outcomes):
        if outcome.before is None:
            continue
        both = [(kind, r) for kind, r in (("before", outcome.before), ("after", outcome.after)) if r is not None]
        ends = sorted(record["avg"] for _, record in both)
        rows.append(
            {
                "colour": colour,
                "travel": span(*ends) if len(ends) == 2 else None,
                "marks": [
                    {"kind": kind, "span": span(r["low"], r["high"]), "place": place(r["avg"]), "avg": r["avg"]}
                    for kind, r in both
                ],
            }
        )
    samples = next(outcome.samples for outcome in outcomes if outcome.samples is not None)
    return {"samples": samples, "rows": rows, "axis": [(place(mark / 100), f"{mark:g}") for mark in marks]}


def figures(run: RunFolder, outcome: Outcome) -> list[tuple[str, str, str]]:
    """The numbers of a run's card: name, value, remark."""
    numbers = []
    ends_of_run = ((run.evaluations[:1], outcome.before), (run.evaluations[-1:], outcome.after))
    for record, average in ends_of_run:
        if average is not None:
            ends = f"{points(average['low'])} to {points(average['high'])}"
            name = f"avg@{outcome.samples} at step {record[0]['step']}"
            numbers.append((name, f"{points(average['avg'])} %", ends))
    if outcome.before is not None and outcome.after is not None:
        lift, change = outcome.lift, signed_points(outcome.after["avg"] - outcome.before["avg"])
        few = ", too few differ" if lift is not None and lift.few else ""
        ends = (
            "" if lift is None else f"{signed_points(lift.low)} to {signed_points(lift.high)}, paired by problem{few}"
        )
        numbers.append(("Change", f"{change} points", ends))
    numbers.append(("Steps", str(run.last_step), f"of {run.planned_steps}"))
    _, steps = run.values("time/step_s")
    seconds = [(record["step"], float(record["seconds"])) for record in run.evaluations]
    if steps:  # a step's time holds its evaluation
        whole = sum(steps) + sum(taken for step, taken in seconds if step == 0)
        numbers.append(("Time", duration(whole), f"of it {duration(sum(taken for _, taken in seconds))} evaluation"))
    else:
        numbers.append(("Time", DASH, ""))
    judged = verdicts(run)
    broken = [verdict.name for verdict in judged if verdict.word == VIOLATED]
    holds = "✓ hold" if any(verdict.word == HOLDS for verdict in judged) else DASH
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
    from nemo_uecr.core.methods import METHODS

    method = METHODS.get(run.method)
    return "" if method is None else method.equation()


def objective(run: RunFolder) -> list[str]:
    """The loss and the settings, without the method's equation."""
    known, whole = method_equation(run), str(run.provenance.get("objective", ""))
    parts = whole.split(known) if known else [whole]
    return [shown for part in parts if (shown := part.strip("; "))]


# Identities


class Verdict(NamedTuple):
    """One identity over a run."""

    name: str
    statement: str
    tolerance: float | None  # largest allowed residual; None if only monitored
    worst: float | None  # largest residual; None if not measured
    step: int | None  # of the largest residual
    word: str  # the verdict


def verdicts(run: RunFolder) -> list[Verdict]:
    """The identities that the run's method declares or monitors, and the first ratio."""
    from nemo_uecr.core.invariants import EXACT, IDENTITIES
    from nemo_uecr.core.methods import METHODS

    method = METHODS.get(run.method)
    declared, monitored = ((), ()) if method is None else (method.identities, method.monitored)
    judged = []
    for name in (*declared, *monitored):
        tolerance = 0.0 if name in EXACT else run.tolerances.get(name)
        allowed = tolerance if name in declared else None
        judged.append(_verdict(run, name, IDENTITIES[name][0], identity_name(name), allowed))
    return [*judged, _verdict(run, *FIRST_RATIO, run.tolerances.get(FIRST_RATIO[0]))]


def _verdict(run: RunFolder, name: str, statement: str, metric: str, tolerance: float | None) -> Verdict:
    steps, values = run.values(metric)
    if not values:
        return Verdict(name, statement, tolerance, None, None, UNMEASURED)
    worst, step = max(zip(map(abs, values), steps, strict=True), key=lambda pair: pair[0])
    word = MONITORED if tolerance is None else HOLDS if worst <= tolerance else VIOLATED
    return Verdict(name, statement, tolerance, worst, step, word)
