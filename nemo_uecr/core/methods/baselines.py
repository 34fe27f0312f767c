"""What UECR is compared with: GRPO, on-policy distillation, their naive sum, distilled RL, and ATOD."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nemo_uecr.core.groups import Groups
from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import GAP_CLIP, Advantages, Block

#: Ratio bound epsilon_T of distilled RL; its value is taken from the training scripts of that method's authors.
RATIO_BOUND = 3.0
#: Annealing length in steps, and the ends of both schedules. Second-hand figures: no official code is public.
ANNEAL_STEPS = 80
KAPPA_LOW, KAPPA_FALL, RHO_RISE = 0.1, 0.9, 1.0
#: A turn statistic whose spread over the response is below this counts as 1/2 for every turn.
FLAT_RANGE = 1e-8


def grpo(view: View) -> Advantages:
    """The verifier alone: ``A = A^GRPO``, the same on every token."""
    return view.broadcast(view.grpo_B)


def pg_opd(view: View) -> Advantages:
    """On-policy distillation as a policy gradient: ``A = clip(delta, -5, 5)``, nats."""
    view.teacher_reward()
    return view.tokens(lambda block: {"advantage_BT": view.gap(block).clamp_(-GAP_CLIP, GAP_CLIP)})


def grpo_plus_opd(view: View) -> Advantages:
    """The naive hybrid: GRPO's surrogate and a second one of ``clip(delta, -5, 5)``, which opd_coef multiplies."""
    view.teacher_reward()
    return view.tokens(
        lambda block: {
            "advantage_BT": view.column(view.grpo_B, block),
            "advantage_opd_BT": view.gap(block).clamp_(-GAP_CLIP, GAP_CLIP),
        }
    )


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


def atod(view: View, *, step: int) -> Advantages:
    """``A = kappa(s) w_turn delta + rho(s) A^GRPO``, s completed steps."""
    view.teacher_reward()
    kappa, rho = schedule(step)
    task_B = rho * view.grpo_B

    def tokens(block: Block) -> dict[str, Tensor]:
        delta = view.gap(block)
        weight = turn_weight(view, block, delta)
        return {"advantage_BT": (delta * weight).mul_(kappa).add_(view.column(task_B, block)), "weight_BT": weight}

    return view.tokens(tokens)


def schedule(step: int) -> tuple[float, float]:
    """``kappa(s) = max(0.1, 1 - 0.9 p)`` and ``rho(s) = 1 + p`` with ``p = min(s / 80, 1)``, s completed steps."""
    progress = min(step / ANNEAL_STEPS, 1.0)
    return max(KAPPA_LOW, 1.0 - KAPPA_FALL * progress), 1.0 + RHO_RISE * progress


def turn_weight(view: View, block: Block, delta: Tensor) -> Tensor:
    """T-DUR weight of each token's turn, ``1 - (1 - d)(1 - h)``; [b, t].

    ``d`` is the turn's mean ``|delta|`` and ``h`` its mean ``-log pi_old``, each scaled to [0, 1] over the turns of
    the response. With one turn both are 1/2 by the flat-range rule, so the weight is constant 0.75.
    """
    batch = view.batch
    if batch.segments_BT is None:
        return torch.full_like(delta, 0.75)
    mask, segments = block.of(batch.mask_BT), block.of(batch.segments_BT)
    row_N = torch.arange(mask.shape[0], device=mask.device).unsqueeze(1).expand_as(mask)[mask]
    turn_N = torch.unique(torch.stack((row_N, segments[mask]), dim=1), dim=0, return_inverse=True)[1]
    responses, turns = (Groups(each_N, torch.bincount(each_N)) for each_N in (row_N, turn_N))

    def scaled(value_N: Tensor) -> Tensor:
        mean_N = turns.mean(value_N)
        low_N, high_N = responses.ends(mean_N)
        flat_N = high_N - low_N < FLAT_RANGE
        return ((mean_N - low_N) / (high_N - low_N).masked_fill(flat_N, 1.0)).masked_fill(flat_N, 0.5)

    d_N, h_N = scaled(delta[mask].abs()), scaled(-block.of(batch.old_logp_BT)[mask])
    weight = torch.ones_like(delta)
    weight[mask] = (1.0 - (1.0 - d_N) * (1.0 - h_N)).to(delta.dtype)
    return weight
