"""What UECR is compared with: GRPO, on-policy distillation, their naive sum, and distilled RL."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import GAP_CLIP, Advantages, Block

#: Ratio bound epsilon_T of distilled RL; its value is taken from the training scripts of that method's authors.
RATIO_BOUND = 3.0


def grpo(view: View) -> Advantages:
    """The verifier alone: ``A = A^GRPO``, the same on every token."""
    return view.broadcast(view.grpo_B)


def pg_opd(view: View) -> Advantages:
    """On-policy distillation as a policy gradient: ``A = clip(delta, -5, 5)``, nats."""
    view.teacher_reward()

    def tokens(block: Block) -> dict[str, Tensor]:
        return {"advantage_BT": view.gap(block).clamp_(-GAP_CLIP, GAP_CLIP)}

    return view.tokens(tokens)


def grpo_plus_opd(view: View) -> Advantages:
    """The naive hybrid: GRPO's surrogate and a second one of ``clip(delta, -5, 5)``, which opd_coef multiplies."""
    view.teacher_reward()

    def tokens(block: Block) -> dict[str, Tensor]:
        return {
            "advantage_BT": view.column(view.grpo_B, block),
            "advantage_opd_BT": view.gap(block).clamp_(-GAP_CLIP, GAP_CLIP),
        }

    return view.tokens(tokens)


def distilled_rl(view: View) -> Advantages:
    """Positive GRPO advantages, reweighted by the teacher's ratio.

    ``A = w A^GRPO`` with ``w = clip(pi_T / pi_old, 1/3, 3)`` over its geometric mean where ``A^GRPO > 0``, else 1.
    """
    view.teacher_reward()
    bound = math.log(RATIO_BOUND)

    def tokens(block: Block) -> dict[str, Tensor]:
        task_b1 = view.column(view.grpo_B, block)
        log_ratio = view.gap(block).clamp_(-bound, bound)
        mean_b1 = log_ratio.sum(dim=1, keepdim=True, dtype=torch.float64) / view.count(block)
        weight = log_ratio.sub_(mean_b1.to(log_ratio.dtype)).masked_fill_(task_b1 <= 0, 0.0).exp_()
        return {"advantage_BT": weight * task_b1, "weight_BT": weight}

    return view.tokens(tokens)
