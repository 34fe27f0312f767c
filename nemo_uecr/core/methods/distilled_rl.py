"""Distilled RL: positive GRPO advantages reweighted by geometrically normalised teacher ratios."""

from __future__ import annotations

import math

import torch

from nemo_uecr.core.methods.base import Method, weighted
from nemo_uecr.core.methods.grpo import grpo_advantage
from nemo_uecr.core.puu import gap, teacher_reward
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings

#: Ratio bound epsilon_T; its value is taken from the training scripts of that method's authors.
RATIO_BOUND = 3.0


def _distilled_rl(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    task_B, std_B = grpo_advantage(batch, settings, "distilled_rl")
    reward_B = teacher_reward(batch)  # also refuses scores that are not finite
    out_BT = torch.zeros_like(batch.old_logp_BT)
    weight_BT = torch.ones_like(batch.old_logp_BT) if detail else None
    bound = math.log(RATIO_BOUND)
    for block in batch.blocks:
        mask = block.of(batch.mask_BT)
        log_ratio = gap(batch, block)
        log_ratio.clamp_(-bound, bound)
        mean_b = log_ratio.sum(dim=1, dtype=torch.float64) / mask.sum(dim=1)
        log_weight = log_ratio.sub_(mean_b.to(log_ratio.dtype).unsqueeze(1))
        plain = (task_B[block.rows] <= 0).unsqueeze(1) | ~mask
        weight = log_weight.masked_fill_(plain, 0.0).exp_()
        advantage = weight * task_B[block.rows].to(weight.dtype).unsqueeze(1)
        block.of(out_BT).copy_(advantage.masked_fill_(~mask, 0.0))
        if weight_BT is not None:
            block.of(weight_BT).copy_(weight)
    return weighted(batch, out_BT, weight_BT, task_B=task_B, std_B=std_B, reward_B=reward_B)


DISTILLED_RL = Method(
    name="distilled_rl",
    equation="A = w A^GRPO; w = clip(pi_T/pi_old, 1/3, 3) / its geometric mean where A^GRPO > 0, else 1",
    provenance="the paper's appendix on closest methods; the bound 3 is from that method's own scripts",
    identities=("finite", "log_weight"),
    monitored=("budget",),
    advantages=_distilled_rl,
)
