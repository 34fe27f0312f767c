"""The declared identities: their tolerance, and the worst residual that the run met."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nemo_uecr.report.markup import DASH, equation, number, text
from nemo_uecr.report.section import Section, run_key
from nemo_uecr.telemetry.run_folder import RunFolder

HOLDS, VIOLATED, MONITORED, UNMEASURED = "holds", "violated", "monitored", "not measured"
FIRST_RATIO = "first_ratio"
FIRST_RATIO_METRIC = "policy/first_ratio_error"
FIRST_RATIO_STATEMENT = "the importance ratio of a batch's first update is 1"


@dataclass(frozen=True)
class Verdict:
    """One identity over a run.

    Attributes:
        name: identity.
        statement: what should hold.
        tolerance: largest allowed residual; None for one that is only monitored.
        worst: largest residual met, NaN if one was not a number; None when no step has it.
        step: where.
        word: the verdict in a word.
    """

    name: str
    statement: str
    tolerance: float | None
    worst: float | None
    step: int | None
    word: str


def verdicts(run: RunFolder) -> list[Verdict]:
    """Every identity that the run's method declares or monitors, and the first ratio."""
    from nemo_uecr.core.invariants import EXACT, IDENTITIES
    from nemo_uecr.core.methods import METHODS

    method = METHODS.get(run.method)
    declared = method.identities if method is not None else ()
    monitored = method.monitored if method is not None else ()
    found = []
    for name in (*declared, *monitored):
        tolerance = 0.0 if name in EXACT else run.tolerances.get(name)
        found.append(
            _verdict(run, name, IDENTITIES[name].statement, metric_of(name), tolerance if name in declared else None)
        )
    found.append(_verdict(run, FIRST_RATIO, FIRST_RATIO_STATEMENT, FIRST_RATIO_METRIC, run.tolerances.get(FIRST_RATIO)))
    return found


def metric_of(identity: str) -> str:
    """Name of the metric that logs an identity's worst residual of a step."""
    from nemo_uecr.telemetry.names import METRICS

    plain = f"identity/{identity}"
    return plain if plain in METRICS else f"{plain}_error"


def _verdict(run: RunFolder, name: str, statement: str, metric: str, tolerance: float | None) -> Verdict:
    steps, values = run.values(metric)
    if not values:
        return Verdict(name, statement, tolerance, None, None, UNMEASURED)
    # NaN sorts first: a residual that is no number is the worst of all.
    index = max(range(len(values)), key=lambda i: math.inf if math.isnan(values[i]) else abs(values[i]))
    worst = abs(values[index])
    word = MONITORED if tolerance is None else HOLDS if worst <= tolerance else VIOLATED
    return Verdict(name, statement, tolerance, worst, steps[index], word)


def identities_section(runs: list[RunFolder]) -> Section:
    """A row an identity: with its worst residual and step for one run, with a column a run for several."""
    found = [verdicts(run) for run in runs]
    words = [verdict.word for one in found for verdict in one]
    checked = words.count(HOLDS) + words.count(VIOLATED)
    summary = (
        f'<p class="note">{words.count(HOLDS)} of {checked} checked identities hold within tolerances that were '
        "written down before the first step. A violation stops a run.</p>"
    )
    table = _table(found[0]) if len(runs) == 1 else _matrix(runs, found)
    return Section("identities", "Identities", f'{summary}<div class="scroll">{table}</div>')


def _table(found: list[Verdict]) -> str:
    head = '<th scope="col">Identity</th><th scope="col">Verdict</th>' + "".join(
        f'<th scope="col" class="num">{name}</th>' for name in ("Worst residual", "Tolerance", "At step")
    )
    rows = "".join(
        f"<tr>{_name(verdict)}<td>{_badge(verdict)}</td>"
        f'<td class="num">{_worst(verdict)}</td><td class="num">{_tolerance(verdict)}</td>'
        f'<td class="num">{DASH if verdict.step is None else verdict.step}</td></tr>'
        for verdict in found
    )
    return f'<table class="identities"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _matrix(runs: list[RunFolder], found: list[list[Verdict]]) -> str:
    named = [{verdict.name: verdict for verdict in one} for one in found]
    names = list(dict.fromkeys(verdict.name for one in found for verdict in one))
    head = "".join(f'<th scope="col">{run_key(run.label, index)}</th>' for index, run in enumerate(runs))
    rows = []
    for name in names:
        first = next(one[name] for one in named if name in one)
        cells = "".join(_cell(one.get(name)) for one in named)
        rows.append(f"<tr>{_name(first)}{cells}</tr>")
    return (
        f'<table class="identities"><thead><tr><th scope="col">Identity</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _name(verdict: Verdict) -> str:
    name = text(verdict.name.replace("_", " "))
    return f'<th scope="row">{name}<small>{equation(verdict.statement)}</small></th>'


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return '<td><span class="verdict monitored">not declared</span></td>'
    if verdict.worst is None:
        return f"<td>{_badge(verdict)}</td>"
    place = f" at step {verdict.step}" if verdict.worst else ""
    bound = "" if verdict.tolerance is None else f", allowed {_tolerance(verdict)}"
    return f"<td>{_badge(verdict)}<small>{_worst(verdict)}{place}{bound}</small></td>"


def _badge(verdict: Verdict) -> str:
    marks = {HOLDS: "✓", VIOLATED: "✗", MONITORED: "○", UNMEASURED: DASH}
    return f'<span class="verdict {verdict.word.replace(" ", "-")}">{marks[verdict.word]} {verdict.word}</span>'


def _worst(verdict: Verdict) -> str:
    if verdict.worst is not None and math.isnan(verdict.worst):
        return "NaN"
    return number(verdict.worst, 3)


def _tolerance(verdict: Verdict) -> str:
    return number(verdict.tolerance, 3)
