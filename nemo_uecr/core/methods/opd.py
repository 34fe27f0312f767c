"""On-policy distillation as a policy gradient, alone and naively added to GRPO."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.core.methods.base import Method, broadcast, stored
from nemo_uecr.core.methods.grpo import grpo_advantage
from nemo_uecr.core.puu import gap, teacher_reward
from nemo_uecr.core.records import GAP_CLIP, Advantages, ScoredBatch, Settings


def opd_advantage(batch: ScoredBatch) -> Tensor:
    """``clip(delta, -5, 5)`` on sampled tokens, 0 elsewhere; [B, T] nats."""
    out_BT = torch.zeros_like(batch.old_logp_BT)
    for block in batch.blocks:
        block.of(out_BT).copy_(gap(batch, block).clamp_(-GAP_CLIP, GAP_CLIP))
    return out_BT


def _pg_opd(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    reward_B = teacher_reward(batch)  # also refuses empty responses and scores that are not finite
    return Advantages(advantage_BT=opd_advantage(batch), teacher_reward_B=stored(reward_B, batch))


def _grpo_plus_opd(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    advantage_B, std_B = grpo_advantage(batch, settings, "grpo_plus_opd")
    reward_B = teacher_reward(batch)
    return Advantages(
        advantage_BT=broadcast(batch, advantage_B),
        advantage_opd_BT=opd_advantage(batch),
        advantage_task_B=stored(advantage_B, batch),
        teacher_reward_B=stored(reward_B, batch),
        unified_std_B=stored(std_B, batch),
    )


PG_OPD = Method(
    name="pg_opd",
    equation="A = clip(delta, -5, 5)",
    provenance="eq:teacher-token-reward as the advantage; the clip is not in the paper",
    identities=("finite",),
    advantages=_pg_opd,
)

GRPO_PLUS_OPD = Method(
    name="grpo_plus_opd",
    equation="A = A^GRPO, A_opd = clip(delta, -5, 5)",
    provenance="the paper's naive hybrid; coefficient and gap clip are not in the paper",
    identities=("finite",),
    advantages=_grpo_plus_opd,
)
