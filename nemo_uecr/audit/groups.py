"""Groups of scored responses, their teacher rewards R^T, and the record that the methods read.

Shape legend: B = responses, P = groups, C = correct and W = incorrect responses of a group, N = tokens in a flat list.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_uecr.audit.store import CheckpointTokens, Scored
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import DataError, ScoreError
from nemo_uecr.stats import Array


@dataclass(frozen=True)
class GroupTable:
    """Groups with the verdicts of their responses."""

    index_B: Array  # group of each response, in [0, P)
    correct_B: Array  # bool, verifier reward 1
    size_P: Array  # number of responses
    correct_P: Array  # number of correct responses
    all_wrong_P: Array  # bool, no response is correct
    all_right_P: Array  # bool, every response is correct
    mixed_P: Array  # bool, neither
    checkpoint_P: Array
    problem_P: Array  # the cluster of the bootstrap

    def range(self, value_B: Array) -> Array:
        """[P] largest minus smallest value of each group."""
        return np.asarray([np.ptp(value_B[rows]) for rows in rows_of(self.index_B)])

    def mixed(self, value_B: Array) -> Iterator[tuple[Array, Array]]:
        """Values of the correct [C] and of the incorrect [W] responses of every mixed group."""
        for rows in itertools.compress(rows_of(self.index_B), self.mixed_P):
            correct = self.correct_B[rows]
            yield value_B[rows[correct]], value_B[rows[~correct]]


def group_table(responses: Scored, group_B: Array | None = None) -> GroupTable:
    """The groups of scored responses by the verifier's rewards; by default the prompts."""
    group_B = responses.group_B if group_B is None else group_B
    return table_of(responses.verified_rewards() == 1.0, group_B, responses.checkpoint_B, responses.problem_B)


def table_of(correct_B: Array, group_B: Array, checkpoint_B: Array, problem_B: Array) -> GroupTable:
    """The groups of responses with these verdicts."""
    _, first_P, index_B, size_P = np.unique(group_B, return_index=True, return_inverse=True, return_counts=True)
    if (size_P < 2).any():
        raise DataError(
            f"{int((size_P < 2).sum())} of {len(size_P)} groups have one response; expected at least 2 responses per "
            "prompt and checkpoint"
        )
    correct_P = np.bincount(index_B[correct_B], minlength=len(size_P))
    wrong_P, right_P = correct_P == 0, correct_P == size_P
    mixed_P = ~(wrong_P | right_P)
    checkpoint_P, problem_P = checkpoint_B[first_P], problem_B[first_P]
    return GroupTable(index_B, correct_B, size_P, correct_P, wrong_P, right_P, mixed_P, checkpoint_P, problem_P)


def rows_of(group_B: Array) -> list[Array]:
    """Rows of each group, in ascending order of both."""
    order = np.argsort(group_B, kind="stable")
    _, counts = np.unique(group_B, return_counts=True)
    return np.split(order, np.cumsum(counts)[:-1])


def blind_name(seed: int, *names: str) -> str:
    """Sixteen hexadecimal digits that depend on the seed and the names alone."""
    return hashlib.sha256(":".join((str(seed), *names)).encode()).hexdigest()[:16]


def seeded(seed: int, name: str) -> np.random.Generator:
    """A random stream that depends on the seed and a name alone."""
    return np.random.default_rng(int(blind_name(seed, name), 16))


def teacher_rewards(scores: Scored, anchor: str, *, clip: float | None) -> tuple[Array, Array]:
    """[B] token mean of the teacher-to-anchor gap in float64 nats, and [B] the number of tokens left out.

    ``R^T_i = sum_t clip(log pi_T(y_t) - log pi_anchor(y_t), -c, c) / L_i``

    A token with a non-finite gap is left out. ``clip`` is c in nats, None for no clip (eq:unified-reward without it;
    eq:app-puu-audit-reward and eq:app-alpha-audit-teacher-score with it).

    Raises:
        ScoreError: a response has no token with a finite gap.
    """
    responses = len(scores.ids)
    total_B, nonfinite_B = np.zeros(responses), np.zeros(responses, dtype=np.int64)
    for step in scores.checkpoints:
        tokens = scores.tokens(anchor, step)
        gap_N = tokens.gap_N
        finite_N = np.isfinite(gap_N)
        gap_N = np.where(finite_N, gap_N, 0.0)
        if clip is not None:
            gap_N = gap_N.clip(-clip, clip)
        total_B[tokens.rows] = np.add.reduceat(gap_N, tokens.offsets[:-1])
        nonfinite_B[tokens.rows] = np.add.reduceat((~finite_N).astype(np.int64), tokens.offsets[:-1])
    used_B = scores.scored_B - nonfinite_B
    if not used_B.all():
        raise ScoreError(
            f"response {scores.ids[used_B.argmin()]!r} has no token with a finite gap between teacher and "
            f"{anchor}; expected at least one. Check the two models, and score again"
        )
    return total_B / used_B, nonfinite_B


def checkpoint_counts(responses: Scored, nonfinite_B: Array, step: int) -> dict[str, int]:
    """Counts of a checkpoint: responses, those truncated in generation or cut in scoring, tokens left out."""
    here_B = responses.checkpoint_B == step
    return {
        "responses": int(here_B.sum()),
        "truncated": int(responses.truncated_B[here_B].sum()),
        "cut": int(responses.cut_B[here_B].sum()),
        "nonfinite_tokens": int(nonfinite_B[here_B].sum()),
    }


def groups_record(scores: Scored, tokens: CheckpointTokens, rows: Array) -> ScoredBatch:
    """The float64 record of whole groups, given by their rows in ``tokens``."""
    spans = [tokens.span(int(row)) for row in rows]
    own = tokens.rows[rows]

    def padded(value_N: Tensor) -> Tensor:
        return pad_sequence([value_N[span].double() for span in spans], batch_first=True)

    return ScoredBatch(
        task_reward_B=torch.from_numpy(scores.reward_B[own]),
        group_B=torch.from_numpy(scores.group_B[own]),
        mask_BT=padded(torch.ones_like(tokens.anchor_logp)).bool(),
        old_logp_BT=padded(tokens.anchor_logp),
        teacher_logp_BT=padded(tokens.teacher_logp),
        teacher_entropy_BT=None if tokens.teacher_entropy is None else padded(tokens.teacher_entropy),
        sample_ids=tuple(scores.ids[row] for row in own),
    )
