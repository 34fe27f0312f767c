from __future__ import annotations

import random
import re

import pytest

from nemo_uecr.demo.task import (
    LEVELS,
    Operation,
    Problem,
    distinct_problems,
    sample_problem,
    worked_solution,
)

STEP = re.compile(r"(\d+)((?:[-+*]\d+)+)=(\d+)")


def value_left_to_right(start: int, chain: str) -> list[int]:
    """Values of `chain`, such as "+18*2", recomputed from the text alone."""
    values = [start]
    for symbol, operand in re.findall(r"([-+*])(\d+)", chain):
        before, number = values[-1], int(operand)
        values.append({"+": before + number, "-": before - number, "*": before * number}[symbol])
    return values


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    rng = random.Random(5)
    return [sample_problem(rng, level) for level in LEVELS for _ in range(200)]


def test_a_problem_by_hand() -> None:
    problem = Problem(10, (Operation("+", 5), Operation("*", 3), Operation("-", 4)))  # (10 + 5) * 3 - 4 = 41
    assert problem.question == "Start with 10: +5 *3 -4 = ?"
    assert problem.answer == "41"  # with precedence it would be 10 + 15 - 4 = 21
    assert problem.level == 2
    assert worked_solution(problem, random.Random(0), 0.0) == "10+5=15\n15*3=45\n45-4=41\n\\boxed{41}"
    assert worked_solution(problem, random.Random(0), 1.0) == "10+5*3-4=41\n\\boxed{41}"


def test_answers_agree_with_the_question_text(problems: list[Problem]) -> None:
    for problem in problems:
        match = re.fullmatch(r"Start with (\d+): (.*) = \?", problem.question)
        assert match is not None
        values = value_left_to_right(int(match[1]), match[2])
        assert str(values[-1]) == problem.answer
        assert all(0 <= value <= 99 for value in values)
        assert len(values) - 2 == problem.level


@pytest.mark.parametrize("skip_rate", [0.0, 0.5, 1.0])
def test_every_line_of_a_solution_is_right(problems: list[Problem], skip_rate: float) -> None:
    rng = random.Random(1)
    for problem in problems:
        *lines, box = worked_solution(problem, rng, skip_rate).split("\n")
        value = problem.start
        for line in lines:
            match = STEP.fullmatch(line)
            assert match is not None
            assert int(match[1]) == value
            value = value_left_to_right(value, match[2])[-1]
            assert int(match[3]) == value
        assert box == f"\\boxed{{{problem.answer}}}"
        written = "".join(match[2] for line in lines if (match := STEP.fullmatch(line)))
        assert written == "".join(map(str, problem.operations))


def test_distinct_problems_avoid_each_other_and_the_seen() -> None:
    first = list(distinct_problems(random.Random(3), [1] * 300, set()))
    seen = {problem.question for problem in first}
    again = list(distinct_problems(random.Random(3), [1] * 300, seen))  # the same seed draws the same problems first
    assert len(seen) == 300
    assert seen.isdisjoint(problem.question for problem in again)
