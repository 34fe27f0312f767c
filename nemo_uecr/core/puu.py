"""PUU: the teacher's mean log-ratio joins the verifier reward before group normalisation.

Shape legend: B = responses, T = tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.checks import check_finite, token_counts
from nemo_uecr.core.groups import Groups, denominator
from nemo_uecr.core.layout import Block
from nemo_uecr.core.records import GAP_CLIP, ScoredBatch
from nemo_uecr.errors import ScoreError


@dataclass(frozen=True)
class UnifiedAdvantage:
    """PUU's response-level quantities, [B] float64.

    Attributes:
        unified_B: A^U.
        task_B: A^task|U, exactly 0 in a group of equal task rewards.
        teacher_B: A^T|U, on the same denominator.
        std_B: Std(R^U) of the group, before floor and eps.
    """

    unified_B: Tensor
    task_B: Tensor
    teacher_B: Tensor
    std_B: Tensor


def gap(batch: ScoredBatch, block: Block) -> Tensor:
    """Teacher-to-old-policy gap of a block, 0 where the mask is False.

    ``delta_t = log pi_T(y_t) - log pi_old(y_t)``, both at temperature 1.

    Returns:
        [b, t] nats, the dtype of the scores, a fresh tensor.

    References:
        eq:teacher-token-reward.
    """
    if batch.teacher_logp_BT is None:
        raise ScoreError("the batch has no teacher_logp; expected teacher scores, which this method needs")
    delta = block.of(batch.teacher_logp_BT) - block.of(batch.old_logp_BT)
    return delta.masked_fill_(~block.of(batch.mask_BT), 0.0)


def teacher_reward(batch: ScoredBatch) -> Tensor:
    """Teacher reward of each response: the token mean of the clipped gap.

    ``R^T_i = sum_t m clip(delta, -5, 5) / sum_t m``

    Returns:
        [B] float64, nats.

    Raises:
        ScoreError: If a masked-in score is not finite or a response is empty.

    References:
        eq:unified-reward; the clip is that of eq:app-puu-audit-reward.
    """
    total_B = torch.empty(batch.responses, dtype=torch.float64, device=batch.mask_BT.device)
    for block in batch.blocks:
        delta = gap(batch, block)
        # The clip would hide an infinite gap, so finiteness is read off the unclipped sum.
        check_finite(batch, block, delta.sum(dim=1, dtype=torch.float64), ("teacher_logp", "old_logp"))
        total_B[block.rows] = delta.clamp_(-GAP_CLIP, GAP_CLIP).sum(dim=1, dtype=torch.float64)
    return total_B / token_counts(batch)


def unified_advantage(
    task_reward_B: Tensor, teacher_reward_B: Tensor, groups: Groups, *, alpha: float, floor: float, sample: bool
) -> UnifiedAdvantage:
    """PUU's advantage and its exact decomposition.

        R^U = R^task + alpha R^T
        A^U = (R^U - mean) / (Std(R^U) + eps),   A^task|U and A^T|U over the same denominator
        A^U = A^task|U + alpha A^T|U

    Args:
        task_reward_B: [B] verifier reward.
        teacher_reward_B: [B] teacher reward, nats.
        groups: the prompts.
        alpha: teacher weight.
        floor: lower bound of the standard deviation; 0 is the paper.
        sample: divide the variance by G - 1 instead of G.

    References:
        eq:unified-advantage, eq:unified-components, prop:adv-decomposition.
    """
    # Centring is linear. Centring each part before the sum keeps the decomposition exact in nearly degenerate groups,
    # where eps alone divides and would raise the rounding of R^task + alpha R^T by a factor of a million.
    task_B, teacher_B = groups.centre(task_reward_B), groups.centre(teacher_reward_B)
    unified_B = task_B + alpha * teacher_B
    std_B = groups.std(unified_B, sample=sample)
    divisor_B = denominator(std_B, floor=floor)
    return UnifiedAdvantage(
        unified_B=unified_B / divisor_B,
        task_B=task_B / divisor_B,
        teacher_B=teacher_B / divisor_B,
        std_B=std_B,
    )
