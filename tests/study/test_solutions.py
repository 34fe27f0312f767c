"""Demonstrations with mistakes: their rates, and that each is consistent with itself."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from nemo_uecr.demo.task import Problem, sample_problem, worked_solution
from nemo_uecr.study.solutions import SLIPS, flawed_solution


def solutions(count: int, *, skip: float, error: float, level: int = 5) -> list[tuple[Problem, str]]:
    rng = random.Random(0)
    problems = [sample_problem(rng, level) for _ in range(count)]
    return [(problem, flawed_solution(problem, rng, skip_rate=skip, error_rate=error)) for problem in problems]


def lines_of(text: str) -> list[tuple[int, str, int]]:
    """First number, operations and result of each line."""
    return [
        (int(start), operations, int(value))
        for start, operations, value in re.findall(r"^(-?\d+)([+\-*][\d+\-*]*)=(-?\d+)$", text, re.M)
    ]


def value_of(start: int, operations: str) -> int:
    for symbol, operand in re.findall(r"([+\-*])(\d+)", operations):
        start = {"+": start + int(operand), "-": start - int(operand), "*": start * int(operand)}[symbol]
    return start


def test_without_errors_it_is_the_worked_solution() -> None:
    for problem, text in solutions(50, skip=0.0, error=0.0):
        assert text == worked_solution(problem, random.Random(0), 0.0)
        assert text.endswith(f"\\boxed{{{problem.answer}}}")


@pytest.mark.parametrize("error", [0.2, 1.0])
def test_lines_slip_at_the_rate_and_go_on_from_the_slip(error: float) -> None:
    slipped = total = 0
    for _, text in solutions(400, skip=0.0, error=error):
        lines = lines_of(text)
        assert len(lines) == 6  # level 5 has six operations, one a line
        for (_, _, value), (start, _, _) in itertools.pairwise(lines):
            assert start == value
        assert text.endswith(f"\\boxed{{{lines[-1][2]}}}")
        off = [value - value_of(start, operations) for start, operations, value in lines]
        assert set(off) <= {0, *SLIPS}
        slipped, total = slipped + sum(gap != 0 for gap in off), total + len(off)
    # 2,400 lines: a share of 0.2 has a standard error of 0.008
    assert slipped / total == pytest.approx(error, abs=0.035)
