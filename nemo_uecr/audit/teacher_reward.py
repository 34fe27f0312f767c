"""R^T of scored responses under a chosen anchor, with or without the clip.

Shape legend: B = responses, N = tokens in a flat list.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_uecr.audit.progress import ProgressLine
from nemo_uecr.audit.responses import Responses
from nemo_uecr.audit.rollouts import Scores
from nemo_uecr.errors import ScoreError

Array = np.ndarray

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
    with ProgressLine("teacher rewards", len(scores.parts)) as progress:
        for tokens in scores.tokens(anchor):
            gap_N = tokens.teacher_logp.double().numpy() - tokens.anchor_logp.double().numpy()
            finite_N = np.isfinite(gap_N)
            gap_N = np.where(finite_N, gap_N, 0.0)
            if clip is not None:
                gap_N = gap_N.clip(-clip, clip)
            starts = tokens.offsets[:-1].numpy()
            total_B[tokens.rows] = np.add.reduceat(gap_N, starts)
            nonfinite_B[tokens.rows] = np.add.reduceat((~finite_N).astype(np.int64), starts)
            progress.advance(1)
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
