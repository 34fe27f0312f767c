"""A study's tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_uecr.evaluation.table import NOTHING
from nemo_uecr.study.selection import RULE, Choice
from nemo_uecr.study.statistics import PAIRS_FOR_A_TEST, TEST_NAME, Mean
from nemo_uecr.study.summary import Cost, Line, TableSummary


def table_markdown(summary: TableSummary, *, confidence: float) -> str:
    """One table: final average, rise, and the reference minus each arm."""
    level = f"{100 * confidence:g}%"
    head = (
        "arm", "pairs", "lr", "before", f"after [{level}]", f"{summary.reference} minus arm [{level}]", "won",
        "p (Holm)", "equal groups at start, in all",
    )  # fmt: skip
    body = [_row(line) for line in summary.lines]
    return f"### {summary.title} ({summary.variant})\n\n" + _grid(head, body)


def selection_markdown(choices: Sequence[Choice]) -> str:
    """The validation averages of every candidate rate, the chosen one bold."""
    rates = sorted({rate for choice in choices for rate in choice.averages})
    head = ("variant", "arm", *(f"{rate:g}" for rate in rates), "at the edge of the grid")
    body = [
        (
            choice.variant,
            choice.arm,
            *(_marked(choice, rate) for rate in rates),
            "yes" if choice.at_edge else "no",
        )
        for choice in choices
    ]
    return f"### Learning rates, chosen by: {RULE}\n\n" + _grid(head, body)


def cost_markdown(costs: Sequence[Cost], baseline: str) -> str:
    """Seconds of a step by phase, and the ratio to the baseline."""
    phases = list(dict.fromkeys(phase for cost in costs for phase in cost.seconds))
    head = ("variant", "arm", *phases, "step, s", f"/ {baseline}")
    body = [
        (
            cost.variant,
            cost.arm,
            *(f"{cost.seconds[phase]:.3f}" if phase in cost.seconds else NOTHING for phase in phases),
            f"{cost.step_seconds:.3f}",
            NOTHING if cost.ratio is None else f"{cost.ratio:.2f}",
        )
        for cost in costs
    ]
    return "### Seconds of a step\n\n" + _grid(head, body)


def notes_markdown() -> str:
    """How to read the tables."""
    return (
        "Averages in percent over the five held-out sets; every pair is a student and a seed of its own, so pairs are "
        "independent. Intervals are Student's t over pairs. A p-value is printed from "
        f"{PAIRS_FOR_A_TEST} pairs on: {TEST_NAME}, Holm-corrected within the table and variant.\n"
    )


def _row(line: Line) -> tuple[str, ...]:
    against = line.against
    return (
        line.arm,
        str(line.final.pairs),
        f"{line.learning_rate:g}",
        f"{line.initial.mean:.1f}",
        _interval(line.final, sign=""),
        NOTHING if against is None else _interval(against.difference, sign="+"),
        NOTHING if against is None else f"{against.wins} of {against.difference.pairs}",
        NOTHING if line.p_holm is None else f"{line.p_holm:.3f}",
        f"{100 * line.degenerate_start:.0f} %, {100 * line.degenerate:.0f} %",
    )


def _interval(mean: Mean, *, sign: str) -> str:
    return f"{mean.mean:{sign}.1f} [{mean.low:{sign}.1f}, {mean.high:{sign}.1f}]"


def _marked(choice: Choice, rate: float) -> str:
    if rate not in choice.averages:
        return NOTHING
    shown = f"{choice.averages[rate]:.1f}"
    return f"**{shown}**" if rate == choice.learning_rate else shown


def _grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
