"""ATOD aligned to single responses: an annealed, turn-weighted OPD advantage plus GRPO, in one surrogate."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, Block

#: Annealing length in steps, and the ends of both schedules. Second-hand figures: no official code is public.
ANNEAL_STEPS = 80
KAPPA_LOW, KAPPA_FALL, RHO_RISE = 0.1, 0.9, 1.0
#: A turn statistic whose spread over the response is below this counts as 1/2 for every turn.
FLAT_RANGE = 1e-8


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
    rows = torch.arange(mask.shape[0], device=mask.device).unsqueeze(1).expand_as(mask)[mask]
    pairs_K2, turn_N = torch.unique(torch.stack((rows, segments[mask]), dim=1), dim=0, return_inverse=True)
    surprisal_N = -block.of(batch.old_logp_BT)[mask]
    d_K = _scaled(_turn_mean(delta[mask].abs(), turn_N, len(pairs_K2)), pairs_K2[:, 0], mask.shape[0])
    h_K = _scaled(_turn_mean(surprisal_N, turn_N, len(pairs_K2)), pairs_K2[:, 0], mask.shape[0])
    weight = torch.ones_like(delta)
    weight[mask] = (1.0 - (1.0 - d_K) * (1.0 - h_K))[turn_N].to(delta.dtype)
    return weight


def _turn_mean(value_N: Tensor, turn_N: Tensor, turns: int) -> Tensor:
    total_K = torch.zeros(turns, dtype=torch.float64, device=value_N.device)
    total_K.index_add_(0, turn_N, value_N.to(torch.float64))
    return total_K / torch.bincount(turn_N, minlength=turns)


def _scaled(mean_K: Tensor, row_K: Tensor, rows: int) -> Tensor:
    low_b = torch.full((rows,), torch.inf, dtype=torch.float64, device=mean_K.device)
    high_b = (-low_b).scatter_reduce(0, row_K, mean_K, "amax")
    low_b = low_b.scatter_reduce(0, row_K, mean_K, "amin")
    range_K = (high_b - low_b)[row_K]
    flat_K = range_K < FLAT_RANGE
    return ((mean_K - low_b[row_K]) / range_K.masked_fill(flat_K, 1.0)).masked_fill(flat_K, 0.5)
