"""PUU: the teacher's mean log-ratio joins the verifier reward before group normalisation.

Shape legend: B = responses, b x t = some responses by their tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.groups import Groups, denominator
from nemo_uecr.core.records import GAP_CLIP, ScoredBatch


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


def gap(teacher_logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Teacher-to-old-policy gap ``delta_t = log pi_T(y_t) - log pi_old(y_t)``, both at temperature 1.

    Args:
        teacher_logp: [b, t] nats.
        old_logp: [b, t] nats.
        mask: [b, t] bool.

    Returns:
        [b, t] nats, a fresh tensor, 0 where the mask is False.

    References:
        eq:teacher-token-reward.
    """
    return (teacher_logp - old_logp).masked_fill_(~mask, 0.0)


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
    teacher_BT, old_BT = batch.scores("teacher_logp"), batch.old_logp_BT
    for block in batch.blocks:
        delta = gap(block.of(teacher_BT), block.of(old_BT), block.of(batch.mask_BT))
        # The clip would hide an infinite gap, so finiteness is read off the unclipped sum.
        batch.check_finite(block, delta.sum(dim=1, dtype=torch.float64), "teacher_logp", "old_logp")
        total_B[block.rows] = delta.clamp_(-GAP_CLIP, GAP_CLIP).sum(dim=1, dtype=torch.float64)
    return total_B / batch.token_counts_B


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
