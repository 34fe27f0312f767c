"""IW-OPD: on-policy distillation that trusts the teacher less the further the response has left it."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, Block

#: Below this sum of |delta|, nats, teacher and student agree on the whole response.
AGREEMENT = 1e-8


def iw_opd(view: View, *, amplification: float) -> Advantages:
    """``A_t = delta_t (1 + amplification (1 - sum_{<t} |delta| / sum |delta|))``, nats."""
    view.teacher_reward()

    def tokens(block: Block) -> dict[str, Tensor]:
        delta = view.gap(block)
        size = delta.abs()
        through = size.cumsum(dim=1, dtype=torch.float64)
        before = (through - size) / through[:, -1:].clamp_min(AGREEMENT)
        weight = (1.0 + amplification * (1.0 - before)).to(delta.dtype)
        return {"advantage_BT": delta * weight, "weight_BT": weight}

    return view.tokens(tokens)
