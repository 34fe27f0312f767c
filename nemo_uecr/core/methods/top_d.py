"""TOP-D: distillation towards a teacher that is mixed with the student, by returns that are normalised in the group."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import EPSILON, Advantages, Block


def top_d(view: View, *, mix: float) -> Advantages:
    """``A = (R - mean R) / (Std(R) + eps)`` over all tokens of the group.

    ``R_t = r_t + mean_{u>t} r_u`` with ``r = log(mix pi_T / pi_old + 1 - mix)``, nats, at least ``log(1 - mix)``.
    """
    view.teacher_reward()
    student = torch.tensor(math.log1p(-mix), dtype=torch.float64)

    def returns(block: Block) -> Tensor:
        mask = block.of(view.batch.mask_BT)
        reward = torch.logaddexp(view.gap(block).double() + math.log(mix), student.to(mask.device))
        reward.masked_fill_(~mask, 0.0)
        through = reward.cumsum(dim=1)
        later = view.count(block) - mask.cumsum(dim=1)
        return (reward + (through[:, -1:] - through) / later.clamp_min(1.0)).masked_fill_(~mask, 0.0)

    def centred(block: Block) -> Tensor:
        return (returns(block) - mean_B[block.rows].unsqueeze(1)).masked_fill_(~block.of(view.batch.mask_BT), 0.0)

    mean_B = view.group_mean(returns)
    divisor_B = view.group_mean(lambda block: centred(block).square()).sqrt() + EPSILON

    def tokens(block: Block) -> dict[str, Tensor]:
        advantage = centred(block) / divisor_B[block.rows].unsqueeze(1)
        return {"advantage_BT": advantage.to(view.batch.old_logp_BT.dtype)}

    return view.tokens(tokens)
