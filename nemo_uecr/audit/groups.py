"""Groups of responses to one prompt by one checkpoint, and their verdicts.

Shape legend: B = responses, P = groups, C = correct and W = incorrect responses of one group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nemo_uecr.audit.responses import Responses
from nemo_uecr.errors import DataError

Array = np.ndarray


@dataclass(frozen=True)
class GroupTable:
    """Groups with the verdicts of their responses.

    Attributes:
        index_B: [B] group of each response, in [0, P).
        correct_B: [B] bool, verifier reward 1.
        size_P: [P] responses.
        correct_P: [P] correct responses.
        checkpoint_P: [P] checkpoint of the group.
        problem_P: [P] problem, the cluster of the bootstrap.
    """

    index_B: Array
    correct_B: Array
    size_P: Array
    correct_P: Array
    checkpoint_P: Array
    problem_P: Array

    @property
    def mixed_P(self) -> Array:
        """[P] bool, both verdicts are there."""
        mixed_P: Array = ~(self.all_wrong_P | self.all_right_P)
        return mixed_P

    @property
    def all_wrong_P(self) -> Array:
        """[P] bool, no response is correct."""
        wrong_P: Array = self.correct_P == 0
        return wrong_P

    @property
    def all_right_P(self) -> Array:
        """[P] bool, every response is correct."""
        right_P: Array = self.correct_P == self.size_P
        return right_P

    def range(self, value_B: Array) -> Array:
        """[P] largest minus smallest value of each group."""
        range_P: Array = self._largest(value_B) + self._largest(-value_B)
        return range_P

    def _largest(self, value_B: Array) -> Array:
        largest_P = np.full(self.size_P.shape, -np.inf)
        np.maximum.at(largest_P, self.index_B, value_B)
        return largest_P

    def mixed(self, value_B: Array) -> Iterator[tuple[int, Array, Array]]:
        """Number, values of the correct [C] and values of the incorrect [W] responses of every mixed group."""
        order = np.argsort(self.index_B, kind="stable")
        ends = np.cumsum(self.size_P)
        for group in np.flatnonzero(self.mixed_P):
            rows = order[ends[group] - self.size_P[group] : ends[group]]
            correct = self.correct_B[rows]
            yield int(group), value_B[rows[correct]], value_B[rows[~correct]]


def group_table(responses: Responses) -> GroupTable:
    """The groups of scored responses.

    Raises:
        DataError: If a reward is not 0 or 1, a group has one response, or a group mixes checkpoints or problems.
    """
    return table_of(responses.verified_rewards(), responses.group_B, responses.checkpoint_B, responses.problem_B)


def pure_groups(index_B: Array, checkpoint_B: Array, problem_B: Array) -> tuple[Array, Array]:
    """[P] checkpoint and [P] problem of each group.

    Raises:
        DataError: If a group mixes checkpoints or problems.
    """
    first_P = np.full(int(index_B.max()) + 1, len(index_B))
    np.minimum.at(first_P, index_B, np.arange(len(index_B)))
    checkpoint_P, problem_P = checkpoint_B[first_P], problem_B[first_P]
    if not (np.array_equal(checkpoint_P[index_B], checkpoint_B) and np.array_equal(problem_P[index_B], problem_B)):
        raise DataError(
            "a group has responses of several checkpoints or problems; expected one prompt of one checkpoint"
        )
    return checkpoint_P, problem_P


def table_of(reward_B: Array, group_B: Array, checkpoint_B: Array, problem_B: Array) -> GroupTable:
    """The groups of responses given column by column; see `group_table`."""
    if not np.isin(reward_B, (0.0, 1.0)).all():
        odd = reward_B[~np.isin(reward_B, (0.0, 1.0))][0]
        raise DataError(f"a reward is {odd}; expected 0 or 1, because this audit compares correct with incorrect")
    groups, index_B, size_P = np.unique(group_B, return_inverse=True, return_counts=True)
    if (size_P < 2).any():
        raise DataError(
            f"{int((size_P < 2).sum())} of {len(groups)} groups have one response; expected at least 2 responses to "
            "each prompt of a checkpoint"
        )
    checkpoint_P, problem_P = pure_groups(index_B, checkpoint_B, problem_B)
    correct_B = reward_B == 1.0
    correct_P = np.bincount(index_B[correct_B], minlength=len(groups))
    return GroupTable(index_B, correct_B, size_P, correct_P, checkpoint_P, problem_P)
