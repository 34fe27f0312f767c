"""G-OPD: distillation whose implicit reward, teacher against initial student, is scaled; above 1 it extrapolates."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.core.checks import check_finite
from nemo_uecr.core.layout import Block
from nemo_uecr.core.methods.base import Method, stored
from nemo_uecr.core.puu import gap, teacher_reward
from nemo_uecr.core.records import GAP_CLIP, Advantages, ScoredBatch, Settings
from nemo_uecr.errors import ScoreError


def implicit_reward(batch: ScoredBatch, block: Block) -> Tensor:
    """``log pi_T(y_t) - log pi_0(y_t)`` at temperature 1, 0 where the mask is False; [b, t] nats."""
    if batch.initial_logp_BT is None or batch.teacher_logp_BT is None:
        raise ScoreError(
            "the batch has no initial_logp; expected the initial student's scores, which this method needs"
        )
    reward = block.of(batch.teacher_logp_BT) - block.of(batch.initial_logp_BT)
    return reward.masked_fill_(~block.of(batch.mask_BT), 0.0)


def _g_opd(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    strength = settings.parameter("extrapolation", "g_opd")
    reward_B = teacher_reward(batch)  # also refuses empty responses and other scores that are not finite
    out_BT = torch.zeros_like(batch.old_logp_BT)
    for block in batch.blocks:
        implicit = implicit_reward(batch, block)
        check_finite(batch, block, implicit.sum(dim=1, dtype=torch.float64), ("initial_logp",))
        # In this form a strength of 1 gives pg_opd's bits.
        advantage = gap(batch, block).add_(implicit, alpha=strength - 1.0)
        block.of(out_BT).copy_(advantage.clamp_(-GAP_CLIP, GAP_CLIP))
    return Advantages(advantage_BT=out_BT, teacher_reward_B=stored(reward_B, batch))


G_OPD = Method(
    name="g_opd",
    equation="A = clip(extrapolation (log pi_T - log pi_0) - (log pi_old - log pi_0), -5, 5), pi_0 the initial student",
    provenance="G-OPD; its authors' ExOPD has extrapolation 1.25; the clip is pg_opd's and not theirs",
    identities=("finite",),
    advantages=_g_opd,
)
