"""Chooses one of several checkpoints by a named rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nemo_uecr.errors import DataError

Result = Mapping[str, Any]


def best(results: Sequence[Result], benchmarks: Sequence[str]) -> int:
    """The highest equal-weight average of avg@k over the benchmarks; the earlier checkpoint of equal ones."""
    scores = _means(results, benchmarks, "avg")
    return scores.index(max(scores))


def earliest_near_best(results: Sequence[Result], benchmarks: Sequence[str]) -> int:
    """The first checkpoint that is not below the best one's 95% interval: fewer steps, no measurable loss."""
    low = _means(results, benchmarks, "low")[best(results, benchmarks)]
    return next(index for index, score in enumerate(_means(results, benchmarks, "avg")) if score >= low)


def last(results: Sequence[Result], _: Sequence[str]) -> int:
    """The last checkpoint, whatever it scores."""
    return len(results) - 1


def _means(results: Sequence[Result], benchmarks: Sequence[str], figure: str) -> list[float]:
    """The equal-weight mean of a figure over the benchmarks, for each checkpoint."""
    return [sum(result["sets"][name][figure] for name in benchmarks) / len(benchmarks) for result in results]


RULES: dict[str, Callable[[Sequence[Result], Sequence[str]], int]] = {
    "best": best,
    "earliest-near-best": earliest_near_best,
    "last": last,
}


def select(results: Sequence[Result], rule: str, benchmarks: Sequence[str]) -> int:
    """Index of the chosen checkpoint.

    Args:
        results: in the order of training.
        rule: a name of `RULES`.
        benchmarks: what the rule looks at; empty is all.

    Raises:
        DataError: If the rule or a benchmark is unknown.
    """
    names = list(results[0]["sets"])
    check_rule(rule, benchmarks, names)
    return RULES[rule](results, list(benchmarks) or names)


def check_rule(rule: str, benchmarks: Sequence[str], evaluated: Sequence[str]) -> None:
    """Refuse an unknown rule or benchmark; called before the first checkpoint is evaluated.

    Raises:
        DataError: naming it.
    """
    if rule not in RULES:
        raise DataError(f"rule {rule!r}; expected one of {', '.join(RULES)}")
    for name in benchmarks:
        if name not in evaluated:
            raise DataError(f"--select-on {name!r}; the evaluations have {', '.join(evaluated)}")
