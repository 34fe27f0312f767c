"""G-OPD: distillation whose implicit reward, teacher against initial student, is scaled; above 1 it extrapolates."""

from __future__ import annotations

from torch import Tensor

from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import GAP_CLIP, Advantages, Block


def g_opd(view: View, *, extrapolation: float) -> Advantages:
    """``A = clip(extrapolation (log pi_T - log pi_0) - (log pi_old - log pi_0), -5, 5)``, pi_0 the initial student."""
    view.teacher_reward()

    def tokens(block: Block) -> dict[str, Tensor]:
        implicit = view.gap(block, behind="initial_logp")
        view.score("initial_logp", block)  # refuses what is not finite
        # In this form an extrapolation of 1 gives pg_opd's bits.
        advantage = view.gap(block).add_(implicit, alpha=extrapolation - 1.0)
        return {"advantage_BT": advantage.clamp_(-GAP_CLIP, GAP_CLIP)}

    return view.tokens(tokens)
