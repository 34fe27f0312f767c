"""Cost of a training step of one method against another's, from runs that took turns."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Phases of a step, as telemetry names them; evaluation and saving are no part of it.
PHASES = ("rollout", "verify", "score_student", "score_teacher", "score_reference", "advantage", "update")
#: The first step pays for caches and memory that later ones find.
WARMUP_STEPS = 1

Record = Mapping[str, float]


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step, the median over a run's steps, by phase and in all; and the tokens it trained on."""

    phases: dict[str, float]
    total: float
    tokens: float


@dataclass(frozen=True)
class Ratio:
    """Step of a method over step of the baseline: the median over rounds, the least and the largest."""

    median: float
    low: float
    high: float


def step_cost(records: Sequence[Record]) -> StepCost:
    """Cost of one run's steps after the first.

    Args:
        records: telemetry of at least two steps, in order.
    """
    warm = records[WARMUP_STEPS:]
    phases = {
        phase: statistics.median(record[f"time/{phase}_s"] for record in warm)
        for phase in PHASES
        if all(f"time/{phase}_s" in record for record in warm)
    }
    total = statistics.median(sum(record[f"time/{phase}_s"] for phase in phases) for record in warm)
    return StepCost(phases, total, statistics.median(record["count/valid_tokens"] for record in warm))


def median_cost(rounds: Sequence[StepCost]) -> StepCost:
    """Median of each figure over the rounds."""
    phases = {phase: statistics.median(cost.phases[phase] for cost in rounds) for phase in rounds[0].phases}
    total = statistics.median(cost.total for cost in rounds)
    return StepCost(phases, total, statistics.median(cost.tokens for cost in rounds))


def ratio(method: Sequence[StepCost], baseline: Sequence[StepCost]) -> Ratio:
    """Ratio of the totals round by round: what slows a round slows both of its runs.

    Args:
        method: one cost a round.
        baseline: the same rounds.
    """
    found = [one.total / other.total for one, other in zip(method, baseline, strict=True)]
    return Ratio(statistics.median(found), min(found), max(found))


def cost_lines(costs: Mapping[str, StepCost], baseline: str, ratios: Mapping[str, Ratio]) -> list[str]:
    """A Markdown table of the medians, and where each method's difference to the baseline goes."""
    phases = [phase for phase in PHASES if any(phase in cost.phases for cost in costs.values())]
    rows: list[Sequence[str]] = [("method", *phases, "step, s", f"step / {baseline}", "tokens")]
    rows.append(["---"] * len(rows[0]))
    for name, cost in costs.items():
        found = ratios.get(name)
        shown = "1" if found is None else f"{found.median:.2f} [{found.low:.2f}, {found.high:.2f}]"
        seconds = [f"{cost.phases[phase]:.3f}" if phase in cost.phases else "-" for phase in phases]
        rows.append((name, *seconds, f"{cost.total:.3f}", shown, f"{cost.tokens:.0f}"))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [*lines, *(_difference(name, costs[name], costs[baseline]) for name in ratios)]


def _difference(name: str, cost: StepCost, base: StepCost) -> str:
    gaps = {phase: cost.phases.get(phase, 0.0) - base.phases.get(phase, 0.0) for phase in (*cost.phases, *base.phases)}
    parts = ", ".join(f"{phase} {gap:+.3f}" for phase, gap in sorted(gaps.items(), key=lambda item: -abs(item[1])))
    return f"{name} minus baseline, s: {parts}"
