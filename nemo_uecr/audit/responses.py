"""The table of scored responses: one entry a response.

Shape legend: B = responses, P = groups, K = problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nemo_uecr.errors import DataError

Array = np.ndarray


@dataclass(frozen=True)
class Responses:
    """One entry a response, in the order of the parts.

    Attributes:
        ids: unique names.
        checkpoint_B: [B] int, training steps that the generating policy had behind it.
        problems: name of each response's problem, the benchmark included.
        problem_B: [B] int in [0, K), the cluster of the bootstrap.
        sample_B: [B] int, number among the responses to one prompt.
        group_B: [B] int in [0, P): responses to one prompt by one checkpoint.
        reward_B: [B] float, verifier reward; NaN where it was never verified.
        scored_B: [B] int, tokens that were scored; fewer than were sampled where the response was cut.
        truncated_B: [B] bool, generation ended at its token limit.
        cut_B: [B] bool, scoring ended at its length limit.
        from_text_B: [B] bool, token ids come from the response's text and not from the sampler.
    """

    ids: tuple[str, ...]
    checkpoint_B: Array
    problems: tuple[str, ...]
    problem_B: Array
    sample_B: Array
    group_B: Array
    reward_B: Array
    scored_B: Array
    truncated_B: Array
    cut_B: Array
    from_text_B: Array

    @property
    def checkpoints(self) -> list[int]:
        """The checkpoints, ascending."""
        return [int(step) for step in np.unique(self.checkpoint_B)]

    def verified_rewards(self) -> Array:
        """[B] rewards.

        Raises:
            DataError: If a response was never verified.
        """
        missing = np.flatnonzero(np.isnan(self.reward_B))
        if missing.size:
            raise DataError(
                f"response {self.ids[missing[0]]!r} and {missing.size - 1} others have no verdict; expected a reward, "
                "or a reference answer to verify against, in the rollouts that were scored"
            )
        return self.reward_B


def responses_of(table: dict[str, list[Any]], folder: Path) -> Responses:
    """The columns of all parts together as responses.

    Raises:
        DataError: If a response stands twice.
    """
    ids = tuple(table["id"])
    twice = first_repeated(ids)
    if twice is not None:
        raise DataError(f"{folder}: response {twice!r} stands twice; expected each once")
    problems = tuple(f"{name}/{problem}" for name, problem in zip(table["benchmark"], table["problem"], strict=True))
    reward = [np.nan if value is None else value for value in table["reward"]]
    return Responses(
        ids=ids,
        checkpoint_B=np.asarray(table["checkpoint"], dtype=np.int64),
        problems=problems,
        problem_B=numbered(problems),
        sample_B=np.asarray(table["sample"], dtype=np.int64),
        group_B=numbered(table["group"]),
        reward_B=np.asarray(reward, dtype=np.float64),
        scored_B=np.asarray(table["scored_tokens"], dtype=np.int64),
        truncated_B=np.asarray(table["truncated"], dtype=bool),
        cut_B=np.asarray(table["cut"], dtype=bool),
        from_text_B=np.asarray([source == "text" for source in table["ids_from"]], dtype=bool),
    )


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that was there before; None where all differ."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def numbered(names: Sequence[str]) -> Array:
    """[len] int, equal names equal numbers, in the order of first appearance."""
    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
