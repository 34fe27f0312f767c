"""Groups of scored responses, the teacher's reward R^T of each, and the tokens of one checkpoint in one place.

Shape legend: B = responses, P = groups, C = correct and W = incorrect responses of a group, N = tokens in a flat list.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nemo_uecr.audit.store import Responses, Scores
from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.errors import DataError, ScoreError

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


def seeded(seed: int, name: str) -> np.random.Generator:
    """A stream that depends on the seed and a name alone."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


# R^T

#: A group is distinguished by the teacher when R^T spreads over more than this, nats (the paper's eps_gap).
GAP_RANGE = 0.05


@dataclass(frozen=True)
class TeacherRewards:
    """R^T of every response.

    Attributes:
        reward_B: [B] float64, nats a token.
        nonfinite_B: [B] int, tokens without a finite gap, left out of the mean.
    """

    reward_B: Array
    nonfinite_B: Array


def teacher_rewards(scores: Scores, anchor: str, *, clip: float | None) -> TeacherRewards:
    """Token mean of the teacher-to-anchor gap of each response.

    ``R^T_i = sum_t clip(log pi_T(y_t) - log pi_anchor(y_t), -c, c) / L_i``

    A token whose gap is not finite has no place in a mean: it is left out and counted.

    Args:
        scores: the scored responses.
        anchor: whose log-probability is subtracted.
        clip: c in nats; None for no clip.

    Raises:
        ScoreError: If a response has no token with a finite gap.

    References:
        eq:unified-reward (no clip), eq:app-puu-audit-reward, eq:app-alpha-audit-teacher-score.
    """
    responses = len(scores.responses.ids)
    total_B, nonfinite_B = np.zeros(responses), np.zeros(responses, dtype=np.int64)
    for tokens in scores.tokens(anchor):
        gap_N = tokens.teacher_logp.double().numpy() - tokens.anchor_logp.double().numpy()
        finite_N = np.isfinite(gap_N)
        gap_N = np.where(finite_N, gap_N, 0.0)
        if clip is not None:
            gap_N = gap_N.clip(-clip, clip)
        starts = tokens.offsets[:-1].numpy()
        total_B[tokens.rows] = np.add.reduceat(gap_N, starts)
        nonfinite_B[tokens.rows] = np.add.reduceat((~finite_N).astype(np.int64), starts)
    used_B = scores.responses.scored_B - nonfinite_B
    if not used_B.all():
        row = int(np.flatnonzero(used_B == 0)[0])
        raise ScoreError(
            f"response {scores.responses.ids[row]!r} has no token with a finite gap between teacher and {anchor}; "
            "expected at least one. Check the two models, and score again"
        )
    return TeacherRewards(total_B / used_B, nonfinite_B)


def checkpoint_counts(responses: Responses, reward: TeacherRewards, step: int) -> dict[str, int]:
    """Responses of a checkpoint, those that were truncated in generation or cut in scoring, tokens left out."""
    here_B = responses.checkpoint_B == step
    return {
        "responses": int(here_B.sum()),
        "truncated": int(responses.truncated_B[here_B].sum()),
        "cut": int(responses.cut_B[here_B].sum()),
        "nonfinite_tokens": int(reward.nonfinite_B[here_B].sum()),
    }


# Tokens of one checkpoint: a part of the scores may split a group, so advantages are computed from here


@dataclass(frozen=True)
class TokenTable:
    """Tokens of one checkpoint's responses.

    Attributes:
        rows: [B] which responses of the scores, in the order of the tokens.
        offsets: [B + 1] first token of each response.
        token_ids: [N].
        teacher_logp: [N] float32 nats.
        teacher_entropy: [N] float32 nats.
        teacher_top1: [N] bool.
        anchor_logp: [N] float32 nats.
        reward_B: [B] float64 verifier reward.
        group_B: [B] group number.
        problem_B: [B] problem number.
        ids: names of the responses.
    """

    rows: Array
    offsets: Array
    token_ids: Tensor
    teacher_logp: Tensor
    teacher_entropy: Tensor
    teacher_top1: Tensor
    anchor_logp: Tensor
    reward_B: Array
    group_B: Array
    problem_B: Array
    ids: tuple[str, ...]

    def span(self, row: int) -> slice:
        """The tokens of a response."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))

    def group_batches(self) -> Iterator[tuple[Array, ScoredBatch]]:
        """Every group: its rows [b] in this table, and its packed record in float64."""
        order = np.argsort(self.group_B, kind="stable")
        _, counts = np.unique(self.group_B, return_counts=True)
        for rows in np.split(order, np.cumsum(counts)[:-1]):
            yield rows, self.batch(rows)

    def batch(self, rows: Array) -> ScoredBatch:
        """Whole groups as one packed record in float64."""
        spans = [self.span(int(row)) for row in rows]
        lengths = torch.tensor([span.stop - span.start for span in spans])

        def packed(value_N: Tensor) -> Tensor:
            return torch.cat([value_N[span] for span in spans]).double()

        return ScoredBatch(
            task_reward_B=torch.from_numpy(self.reward_B[rows]),
            group_B=torch.from_numpy(self.group_B[rows]),
            mask_BT=torch.ones(int(lengths.sum()), dtype=torch.bool),
            old_logp_BT=packed(self.anchor_logp),
            teacher_logp_BT=packed(self.teacher_logp),
            teacher_entropy_BT=packed(self.teacher_entropy),
            offsets=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]),
            sample_ids=tuple(self.ids[row] for row in rows),
        )


def token_table(scores: Scores, anchor: str, checkpoint: int) -> TokenTable:
    """Load the tokens of one checkpoint.

    Raises:
        DataError: If the checkpoint was not scored, or a group mixes checkpoints or problems.
    """
    found = scores.responses
    reward_B = found.verified_rewards()
    pure_groups(found.group_B, found.checkpoint_B, found.problem_B)
    names = ("token_ids", "teacher_logp", "teacher_entropy", "teacher_top1", "anchor_logp")
    collected: dict[str, list[Tensor]] = {name: [] for name in names}
    kept = []
    for tokens in scores.tokens(anchor):
        own_b = found.checkpoint_B[tokens.rows] == checkpoint
        if not own_b.any():
            continue
        kept.append(np.arange(tokens.rows.start, tokens.rows.stop)[own_b])
        chosen_N = torch.from_numpy(own_b).repeat_interleave(tokens.offsets.diff())
        for name in names:
            collected[name].append(getattr(tokens, name)[chosen_N])
    if not kept:
        known = ", ".join(map(str, found.checkpoints))
        raise DataError(f"{scores.folder} has no response of checkpoint {checkpoint}; expected one of {known}")
    rows = np.concatenate(kept)
    return TokenTable(
        rows=rows,
        offsets=np.concatenate([[0], np.cumsum(found.scored_B[rows])]),
        **{name: torch.cat(parts) for name, parts in collected.items()},
        reward_B=reward_B[rows],
        group_B=found.group_B[rows],
        problem_B=found.problem_B[rows],
        ids=tuple(found.ids[row] for row in rows),
    )
