"""A study's tables, for any format that `nemo_uecr.evaluation.tables` writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nemo_uecr.evaluation.tables import NOTHING, Cell, Row, Score, Table, build_table, rounded
from nemo_uecr.stats import Mean
from nemo_uecr.study.selection import Choice
from nemo_uecr.study.sensitivity import Panel
from nemo_uecr.study.summary import Cost, Line, TableSummary


def sets_table(summary: TableSummary, *, layout: str, samples: int) -> Table | None:
    """Arms by held-out sets over their common pairs, the best and the second marked; None with fewer than two pairs.

    The interval over pairs stands with the average alone.

    Args:
        summary: one table in one variant.
        layout: "main", or "ablation" with the parts of the method that each arm has.
        samples: k of avg@k.
    """
    means = {"initial": (summary.initial_sets, summary.initial)}
    means |= {line.arm: (line.sets, line.common) for line in summary.lines}
    rows = [
        Row(arm, {name: _score(mean) for name, mean in (sets | {"average": average}).items()})
        for arm, (sets, average) in means.items()
        if average is not None
    ]
    if not rows:
        return None
    table = build_table(rows, layout=layout, k=samples)
    lines = [
        (Cell(row.method, "", 0), *(replace(cell, interval="") for cell in line[1:-1]), line[-1])
        for row, line in zip(rows, table.lines, strict=True)
    ]
    return Table((f"Arm, avg@{samples} (%)", *table.head[1:]), tuple(lines))


def difference_table(summary: TableSummary, *, confidence: float) -> Table:
    """Final average, and the reference minus each arm pair by pair."""
    level = f"{100 * confidence:g}%"
    head = (
        "arm", "pairs", "lr", "before", f"after [{level}]", f"{summary.reference} minus arm [{level}]", "won",
        "p (Holm)", "equal groups at start", "in all steps",
    )  # fmt: skip
    return Table(head, tuple(_difference_line(line) for line in summary.lines))


def selection_table(choices: Sequence[Choice]) -> Table:
    """The validation averages of every candidate rate, the chosen one marked."""
    rates = sorted({rate for choice in choices for rate in choice.averages})
    head = ("variant", "arm", *(f"lr {rate:g}" for rate in rates), "at the edge of the grid")
    body = [
        (
            _text(choice.variant),
            _text(choice.arm),
            *(_candidate(choice, rate) for rate in rates),
            _text("yes" if choice.at_edge else "no"),
        )
        for choice in choices
    ]
    return Table(head, tuple(body))


def cost_table(costs: Sequence[Cost], baseline: str) -> Table:
    """Seconds of a step by phase, and the ratio to the baseline."""
    phases = list(dict.fromkeys(phase for cost in costs for phase in cost.seconds))
    head = ("variant", "arm", *phases, "step, s", f"step / {baseline}")
    body = [
        (
            _text(cost.variant),
            _text(cost.arm),
            *(
                _text(rounded(cost.seconds[phase], 3, sign="") if phase in cost.seconds else NOTHING)
                for phase in phases
            ),
            _text(rounded(cost.step_seconds, 3, sign="")),
            _text(NOTHING if cost.ratio is None else rounded(cost.ratio, 2, sign="")),
        )
        for cost in costs
    ]
    return Table(head, tuple(body))


def sensitivity_table(panels: Sequence[Panel], *, confidence: float) -> Table:
    """Every value of every setting, and what it changes against the default."""
    level = f"{100 * confidence:g}%"
    head = ("variant", "setting", "value", "arm", "pairs", f"after [{level}]", f"minus default [{level}]")
    body = [
        (
            _text(panel.variant),
            _text(panel.title),
            Cell(f"{point.value:g}", "", 1 if point.arm == panel.default else 0),
            _text(point.arm),
            _text(str(len(panel.pairs))),
            _mean(point.final, sign=""),
            _text(NOTHING) if point.against is None else _mean(point.against, sign="+"),
        )
        for panel in panels
        for point in panel.points
    ]
    return Table(head, tuple(body))


def _difference_line(line: Line) -> tuple[Cell, ...]:
    against = line.against
    return (
        _text(line.arm),
        _text(str(line.final.pairs)),
        _text(f"{line.learning_rate:g}"),
        _text(rounded(line.initial.mean, 1, sign="")),
        _mean(line.final, sign=""),
        _text(NOTHING) if against is None else _mean(against.difference, sign="+"),
        _text(NOTHING if against is None else f"{against.wins} of {against.difference.pairs}"),
        _text(NOTHING if line.p_holm is None else rounded(line.p_holm, 3, sign="")),
        _text(_share(line.degenerate_start)),
        _text(_share(line.degenerate)),
    )


def _score(mean: Mean) -> Score:
    return Score(mean.mean, mean.low, mean.high)


def _candidate(choice: Choice, rate: float) -> Cell:
    if rate not in choice.averages:
        return _text(NOTHING)
    return Cell(rounded(choice.averages[rate], 1, sign=""), "", 1 if rate == choice.learning_rate else 0)


def _mean(mean: Mean, *, sign: str) -> Cell:
    centre, low, high = (rounded(value, 1, sign=sign) for value in (mean.mean, mean.low, mean.high))
    return Cell(centre, f"{low}, {high}", 0)


def _share(value: float) -> str:
    return f"{rounded(100 * value, 0, sign='')}%"


def _text(text: str) -> Cell:
    return Cell(text, "", 0)
