"""RLSD: the teacher's ratio, clipped tightly, scales the size of each token's GRPO advantage and never its sign."""

from __future__ import annotations

from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, Block


def rlsd(view: View, *, mix: float, bound: float) -> Advantages:
    """``A = A^GRPO (1 - mix + mix clip(exp(sign(A^GRPO) delta), 1 - bound, 1 + bound))``."""
    view.teacher_reward()

    def tokens(block: Block) -> dict[str, Tensor]:
        task_b1 = view.column(view.grpo_B, block)
        ratio = view.gap(block).mul_(task_b1.sign()).exp_().clamp_(1.0 - bound, 1.0 + bound)
        weight = ratio.mul_(mix).add_(1.0 - mix)
        return {"advantage_BT": weight * task_b1, "weight_BT": weight}

    return view.tokens(tokens)
