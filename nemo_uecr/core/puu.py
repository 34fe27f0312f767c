"""PUU: the teacher's mean log-ratio joins the verifier reward before group normalisation.

Shape legend: B = responses, b x t = some responses by their tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.groups import Groups, denominator
from nemo_uecr.core.records import (
    GAP_CLIP,
    Names,
    Settings,
    check_finite,
    check_per_response,
    check_scores,
    not_empty,
    numbered,
    rows,
)
from nemo_uecr.errors import ScoreError


@dataclass(frozen=True)
class UnifiedAdvantage:
    """PUU's response-level quantities, float64, of the rewards' shape."""

    #: A^U.
    unified: Tensor
    #: A^task|U, exactly 0 in a group of equal task rewards.
    task: Tensor
    #: A^T|U, on the same denominator.
    teacher: Tensor
    #: Std(R^U) of the group, before floor and eps.
    std: Tensor


def gap(teacher_logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Gap ``delta_t = log pi_T(y_t) - log pi_old(y_t)``, fresh, 0 where the mask is False (eq:teacher-token-reward)."""
    return (teacher_logp - old_logp).masked_fill_(~mask, 0.0)


@torch.no_grad()
def teacher_reward(*, old_logp: Tensor, teacher_logp: Tensor, mask: Tensor, clip: float = GAP_CLIP) -> Tensor:
    """Teacher reward of each response: the token mean of the clipped gap.

    ``R^T = sum_t m clip(delta, -clip, clip) / sum_t m``

    Args:
        old_logp: [..., T] log pi_old(y_t) at temperature 1, nats: not the log-probabilities of the ratio, which are
            at the rollout temperature.
        teacher_logp: [..., T] log pi_T(y_t) at temperature 1, nats.
        mask: [..., T] bool or integer, the sampled tokens; scores elsewhere are never read.
        clip: bound of the gap, nats.

    Returns:
        [...] float64, nats.

    Raises:
        ScoreError: If a masked-in score is not finite or a response is empty.

    References:
        eq:unified-reward; the clip is that of eq:app-puu-audit-reward.
    """
    mask = check_scores(mask, teacher_logp=teacher_logp, old_logp=old_logp)
    teacher, old, mask_bt = (rows(field) for field in (teacher_logp, old_logp, mask))
    names = Names()
    counts_b = not_empty(mask_bt.sum(dim=1).to(torch.float64), names.row)
    return (clipped_sum(teacher, old, mask_bt, clip, names) / counts_b).reshape(mask.shape[:-1])


def clipped_sum(teacher_logp: Tensor, old_logp: Tensor, mask: Tensor, clip: float, names: Names) -> Tensor:
    """``sum_t m clip(delta, -clip, clip)`` of each row of [b, t] scores; [b] float64 nats."""
    delta = gap(teacher_logp, old_logp, mask)
    # The clip would hide an infinite gap, so finiteness is read off the unclipped sum.
    total_b = delta.sum(dim=1, dtype=torch.float64)
    check_finite(total_b, mask, names, teacher_logp=teacher_logp, old_logp=old_logp)
    return delta.clamp_(-clip, clip).sum(dim=1, dtype=torch.float64)


@torch.no_grad()
def unified_advantage(
    task_reward: Tensor,
    teacher_reward: Tensor,
    group: Tensor | Sequence[Hashable] | Groups,
    *,
    alpha: float,
    std_floor: float = 0.0,
    sample_std: bool = False,
) -> UnifiedAdvantage:
    """PUU's advantage and its exact decomposition.

        R^U = R^task + alpha R^T
        A^U = (R^U - mean) / (Std(R^U) + eps),   A^task|U and A^T|U over the same denominator
        A^U = A^task|U + alpha A^T|U

    Where the responses of one prompt lie on several ranks, gather rewards and groups, call this with all of them, and
    take the own rows of the result.

    Args:
        task_reward: [...] verifier reward.
        teacher_reward: [...] teacher reward, nats.
        group: [...] prompt identities, or a flat sequence of hashable ones.
        alpha: teacher weight.
        std_floor: lower bound of the standard deviation; 0 is the paper.
        sample_std: divide the variance by G - 1 instead of G.

    Returns:
        Components of the rewards' shape.

    Raises:
        ConfigError: If a setting is out of range.
        ScoreError: If a reward is not finite, shapes differ, or a group has one response.

    References:
        eq:unified-advantage, eq:unified-components, prop:adv-decomposition.
    """
    Settings(alpha=alpha, std_floor=std_floor)
    if isinstance(group, Groups):  # of a batch that has been checked
        groups = group
    else:
        check_per_response(task_reward.shape, task_reward=task_reward, teacher_reward=teacher_reward)
        groups = Groups.of(numbered(group, task_reward.device))
        if len(groups.index_B) != task_reward.numel():
            raise ScoreError(f"group names {len(groups.index_B)} responses; expected {task_reward.numel()}")
    # Centring is linear. Centring each part before the sum keeps the decomposition exact in nearly degenerate groups,
    # where eps alone divides and would raise the rounding of R^task + alpha R^T by a factor of a million.
    task_B, teacher_B = groups.centre(task_reward.reshape(-1)), groups.centre(teacher_reward.reshape(-1))
    unified_B = task_B + alpha * teacher_B
    std_B = groups.std(unified_B, sample=sample_std)
    divisor_B = denominator(std_B, floor=std_floor)
    parts = (unified_B / divisor_B, task_B / divisor_B, teacher_B / divisor_B, std_B)
    return UnifiedAdvantage(*(part.reshape(task_reward.shape) for part in parts))
