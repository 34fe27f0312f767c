"""Small arithmetic in words: problems with a right and a fixed wrong answer, and the reward.

It imports the standard library alone, because a run's reward process loads it by its path.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import NamedTuple

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Problem(NamedTuple):
    """A question, its answer, and the answer that the wrong teacher gives."""

    kind: str
    question: str
    answer: str
    wrong: str


def _sums(rng: random.Random) -> list[Problem]:
    pairs = [(a, b) for a in range(10, 60) for b in range(10, 60)]
    return [Problem("sum", f"What is {a} plus {b}?", str(a + b), str(a + b + 1)) for a, b in pairs]


def _products(rng: random.Random) -> list[Problem]:
    pairs = [(a, b) for a in range(2, 21) for b in range(2, 21)]
    return [Problem("product", f"What is {a} times {b}?", str(a * b), str(a * b + 1)) for a, b in pairs]


def _largest(rng: random.Random) -> list[Problem]:
    fours = {tuple(rng.sample(range(10, 100), 4)): None for _ in range(1000)}
    return [
        Problem(
            "largest", f"Which is the largest of {a}, {b}, {c} and {d}?", str(max(a, b, c, d)), str(min(a, b, c, d))
        )
        for a, b, c, d in fours
    ]


KINDS: tuple[Callable[[random.Random], list[Problem]], ...] = (_sums, _products, _largest)


def problems(*, held_out: int, trained: int) -> tuple[list[Problem], list[Problem]]:
    """As many of each kind held out and trained on, always the same; the kinds take turns."""
    rng, drawn = random.Random(0), []
    for kind in KINDS:
        every = kind(rng)
        rng.shuffle(every)
        drawn.append(every[: held_out + trained])
    turns = [each for turn in zip(*drawn, strict=True) for each in turn]
    return turns[: held_out * len(KINDS)], turns[held_out * len(KINDS) :]


def last_number(text: str) -> str | None:
    """The last number of a text, as it is written but for commas."""
    found = NUMBER.findall(text.replace(",", ""))
    return found[-1] if found else None


def right(solution_str: str, ground_truth: str) -> float:
    """1 where the last number of the response is the answer, else 0."""
    return float(last_number(solution_str) == ground_truth)


def with_answer(text: str, answer: str) -> str | None:
    """The text with its last number exchanged; None where it has none."""
    found = list(NUMBER.finditer(text))
    return text[: found[-1].start()] + answer + text[found[-1].end() :] if found else None
