"""RLSD: the teacher's ratio, clipped tightly, scales the size of each token's GRPO advantage and never its sign."""

from __future__ import annotations

import torch

from nemo_uecr.core.methods.base import Method, weighted
from nemo_uecr.core.methods.grpo import grpo_advantage
from nemo_uecr.core.puu import gap, teacher_reward
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings


def _rlsd(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    mix, bound = settings.parameter("mix", "rlsd"), settings.parameter("bound", "rlsd")
    task_B, std_B = grpo_advantage(batch, settings, "rlsd")
    reward_B = teacher_reward(batch)  # also refuses scores that are not finite
    out_BT = torch.zeros_like(batch.old_logp_BT)
    weight_BT = torch.ones_like(batch.old_logp_BT) if detail else None
    for block in batch.blocks:
        mask, delta = block.of(batch.mask_BT), gap(batch, block)
        task_b1 = task_B[block.rows].to(delta.dtype).unsqueeze(1)
        ratio = delta.mul_(task_b1.sign()).exp_().clamp_(1.0 - bound, 1.0 + bound)
        weight = ratio.mul_(mix).add_(1.0 - mix).masked_fill_(~mask, 1.0)
        block.of(out_BT).copy_((weight * task_b1).masked_fill_(~mask, 0.0))
        if weight_BT is not None:
            block.of(weight_BT).copy_(weight)
    return weighted(batch, out_BT, weight_BT, task_B=task_B, std_B=std_B, reward_B=reward_B)


RLSD = Method(
    name="rlsd",
    equation="A = A^GRPO (1 - mix + mix clip(exp(sign(A^GRPO) delta), 1 - bound, 1 + bound))",
    provenance="arXiv 2604.03128, whose teacher is the student with the answer in view; ms-swift's mix and bound",
    identities=("finite", "sign_kept"),
    monitored=("budget",),
    advantages=_rlsd,
)
