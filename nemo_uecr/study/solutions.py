"""Demonstrators that skip steps and make mistakes: what a study's students and teachers are taught from."""

from __future__ import annotations

import random

from nemo_uecr.demo.task import LARGEST_VALUE, Problem

#: How far a wrong line is off.
SLIPS = (-10, -2, -1, 1, 2, 10)


def flawed_solution(problem: Problem, rng: random.Random, *, skip_rate: float, error_rate: float) -> str:
    """Written steps and the boxed value of a demonstrator who skips steps and slips at given rates.

    A slip changes the value that a line ends in; the following lines go on from the wrong value, so that the text is
    consistent with itself and its answer is (almost always) wrong.

    Args:
        problem: what to solve.
        rng: decides skips and slips.
        skip_rate: probability that two neighbouring operations share a line.
        error_rate: probability that a line ends in a wrong value.
    """
    lines, value, line = [], problem.start, str(problem.start)
    for position, operation in enumerate(problem.operations, start=1):
        value = operation.apply(value)
        line += str(operation)
        if position == len(problem.operations) or rng.random() >= skip_rate:
            if error_rate > 0 and rng.random() < error_rate:
                value = _slipped(value, rng)
            lines.append(f"{line}={value}")
            line = str(value)
    return "\n".join([*lines, f"\\boxed{{{value}}}"])


def _slipped(value: int, rng: random.Random) -> int:
    """Another value, within the task's range unless an earlier slip has led far out of it."""
    slipped = [value + slip for slip in SLIPS]
    return rng.choice([other for other in slipped if 0 <= other <= LARGEST_VALUE] or slipped)
