r"""Chains of arithmetic with written steps: problems, worked solutions and data sets.

The rule of the task: begin with a number, apply the operations in the order in which they are written
(there is no precedence), write every step on a line of its own, and box the last value. Every value on the way
is a whole number from 0 to 99. A problem of level k has k + 1 operations; here is one of level 2:

    question   Start with 10: +5 *3 -4 = ?
    solution   10+5=15
               15*3=45
               45-4=41
               \boxed{41}
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

LARGEST_VALUE = 99
FIRST_VALUES = range(2, 100)
ADDENDS = range(2, 20)
FACTORS = range(2, 4)
FACTOR_SHARE = 0.25
LEVELS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on the running value; `symbol` is +, - or *."""

    symbol: str
    operand: int

    def apply(self, value: int) -> int:
        """Return the value after this operation."""
        if self.symbol == "+":
            return value + self.operand
        if self.symbol == "-":
            return value - self.operand
        return value * self.operand

    def __str__(self) -> str:
        return f"{self.symbol}{self.operand}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A first number and the operations to apply to it in order."""

    start: int
    operations: tuple[Operation, ...]

    @property
    def level(self) -> int:
        """Difficulty from 1 to 5: the number of operations less one."""
        return len(self.operations) - 1

    @property
    def question(self) -> str:
        """The question as the student reads it."""
        return f"Start with {self.start}: {' '.join(map(str, self.operations))} = ?"

    @property
    def answer(self) -> str:
        """The value after the last operation."""
        value = self.start
        for operation in self.operations:
            value = operation.apply(value)
        return str(value)


def sample_problem(rng: random.Random, level: int) -> Problem:
    """Draw one problem of a level; all its values stay within 0..99."""
    start = value = rng.choice(FIRST_VALUES)
    operations = []
    for _ in range(level + 1):
        operations.append(_sample_operation(rng, value))
        value = operations[-1].apply(value)
    return Problem(start, tuple(operations))


def sample_unseen(rng: random.Random, level: int, seen: Set[str]) -> Problem:
    """Draw problems of a level until one comes whose question is not in `seen`."""
    while (problem := sample_problem(rng, level)).question in seen:
        pass
    return problem


def question_count(level: int) -> int:
    """How many different questions a level has: legal chains of operations over all first values."""
    chains = Counter(FIRST_VALUES)
    for _ in range(level + 1):
        longer = Counter[int]()
        for value, count in chains.items():
            for operation in (*_legal_factors(value), *_legal_terms(value)):
                longer[operation.apply(value)] += count
        chains = longer
    return chains.total()


def distinct_problems(rng: random.Random, levels: Iterable[int], seen: Set[str]) -> Iterator[Problem]:
    """Yield one problem for each of `levels`, all different from each other and from `seen`."""
    taken = set(seen)
    for level in levels:
        problem = sample_unseen(rng, level, taken)
        taken.add(problem.question)
        yield problem


def worked_solution(problem: Problem, rng: random.Random, skip_rate: float) -> str:
    """Return the written steps and the boxed value, as a demonstrator who skips steps at a given rate writes them.

    To skip a step is to do the next operation in the head: it joins the line that is being written, as in
    `10+5*3=45`. Every line is right, whatever the rate; at 0 each line has one operation.

    Args:
        problem: what to solve.
        rng: decides which steps are skipped.
        skip_rate: probability, in [0, 1], that two neighbouring operations share a line.
    """
    lines, value, line = [], problem.start, str(problem.start)
    for position, operation in enumerate(problem.operations, start=1):
        value = operation.apply(value)
        line += str(operation)
        if position == len(problem.operations) or rng.random() >= skip_rate:
            lines.append(f"{line}={value}")
            line = str(value)
    return "\n".join([*lines, f"\\boxed{{{value}}}"])


def write_rows(path: Path, problems: Iterable[Problem], name: str) -> None:
    """Write problems as JSONL rows with id, question and answer; ids are `name` and a number from 1."""
    rows = (
        {"id": f"{name}-{number}", "question": problem.question, "answer": problem.answer}
        for number, problem in enumerate(problems, start=1)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_questions(path: Path) -> set[str]:
    """Read the questions of a file that `write_rows` wrote."""
    return {json.loads(line)["question"] for line in path.read_text(encoding="utf-8").splitlines()}


def _sample_operation(rng: random.Random, value: int) -> Operation:
    factors = _legal_factors(value)
    if factors and rng.random() < FACTOR_SHARE:
        return rng.choice(factors)
    return rng.choice(_legal_terms(value))


def _legal_factors(value: int) -> list[Operation]:
    return [Operation("*", factor) for factor in FACTORS if 0 < value * factor <= LARGEST_VALUE]


def _legal_terms(value: int) -> list[Operation]:
    legal = [Operation("+", addend) for addend in ADDENDS if value + addend <= LARGEST_VALUE]
    return legal + [Operation("-", addend) for addend in ADDENDS if value - addend >= 0]
