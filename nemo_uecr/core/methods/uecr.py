"""UECR, its two stages alone, and its ablations.

Shape legend: B = responses, b x t = one block of responses by tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nemo_uecr.core import ecr
from nemo_uecr.core.ecr import Residual
from nemo_uecr.core.methods.view import View
from nemo_uecr.core.records import Advantages, Block

#: (block, sign of A^task|U [b]) -> the block's residual
Rule = Callable[[Block, Tensor], Residual]


def puu(view: View, *, alpha: float) -> Advantages:
    """``A = A^U = (R^U - mean) / (Std(R^U) + eps)``, ``R^U = R^task + alpha R^T``: UECR with rho = 0."""
    return view.broadcast(view.unified(alpha).unified)


def separate_norm(view: View, *, alpha: float) -> Advantages:
    """``A = norm(R^task) + alpha norm(R^T)``, each over its own standard deviation."""
    task_B = view.grpo_B
    teacher_B = view.keep("advantage_teacher_B", view.normalised(view.teacher_reward())[0])
    return view.broadcast(task_B + alpha * teacher_B)


def uecr(view: View, *, alpha: float, rho: float, tau_delta: float, tau_entropy: float) -> Advantages:
    """``A = A^U + rho A^task|U q`` with q the projection of ``1/2 c d``."""
    return _redistributed(view, alpha, rho, projected(view, tau_delta, tau_entropy))


def ecr_no_entropy(view: View, *, alpha: float, rho: float, tau_delta: float) -> Advantages:
    """UECR with c = 1 on every sampled token, projection recomputed."""
    return _redistributed(view, alpha, rho, without_entropy(view, tau_delta))


def ecr_no_projection(view: View, *, alpha: float, rho: float, tau_delta: float, tau_entropy: float) -> Advantages:
    """UECR with mu = 0: ``q = 1/2 c d``, and the response's task budget moves."""

    def residual(block: Block, sign_b: Tensor) -> Residual:
        return ecr.unprojected(view.direction(block, sign_b, tau_delta), *view.confidence(block, tau_entropy))

    return _redistributed(view, alpha, rho, residual)


def ecr_no_gap(view: View, *, alpha: float, rho: float, tau_entropy: float) -> Advantages:
    """UECR with ``q = 1/2 s (c - mean(c))``: confidence alone gives the direction."""

    def residual(block: Block, sign_b: Tensor) -> Residual:
        mask = block.of(view.batch.mask_BT)
        return ecr.confidence_alone(*view.confidence(block, tau_entropy), mask, sign_b)

    return _redistributed(view, alpha, rho, residual)


def ecr_full_advantage(view: View, *, alpha: float, rho: float, tau_delta: float, tau_entropy: float) -> Advantages:
    """``A = A^U (1 + rho q)``: the weight multiplies the whole unified advantage."""
    return _redistributed(view, alpha, rho, projected(view, tau_delta, tau_entropy), whole=True)


def ecr_alpha_zero(view: View, *, rho: float, tau_delta: float, tau_entropy: float) -> Advantages:
    """UECR with alpha = 0: ``A = A^GRPO (1 + rho q)``."""
    return uecr(view, alpha=0.0, rho=rho, tau_delta=tau_delta, tau_entropy=tau_entropy)


def shuffled_entropy(
    view: View, *, alpha: float, rho: float, tau_delta: float, tau_entropy: float, seed: int
) -> Advantages:
    """UECR with the teacher's entropies permuted within each response."""
    return uecr(view.with_shuffled_entropy(seed), alpha=alpha, rho=rho, tau_delta=tau_delta, tau_entropy=tau_entropy)


def projected(view: View, tau_delta: float, tau_entropy: float) -> Rule:
    """Full ECR: the projection of ``1/2 c d``."""
    return lambda block, sign_b: ecr.projected(
        view.direction(block, sign_b, tau_delta), *view.confidence(block, tau_entropy)
    )


def without_entropy(view: View, tau_delta: float) -> Rule:
    """ECR with c = 1 on every sampled token."""

    def rule(block: Block, sign_b: Tensor) -> Residual:
        d = view.direction(block, sign_b, tau_delta)
        return ecr.projected(d, block.of(view.batch.mask_BT).to(d.dtype), torch.ones_like(d[:, :1]))

    return rule


def _redistributed(view: View, alpha: float, rho: float, rule: Rule, *, whole: bool = False) -> Advantages:
    """``A = A^U + rho A^task|U q``, or ``+ rho A^U q``, for the residual q that the rule gives each block.

    eq:final-advantage, prop:invariants. ``A^task|U (1 + rho q) + alpha A^T|U`` is the same number but not the same
    bits: at rho = 0 it would not be A^U.
    """
    parts = view.unified(alpha)
    sign_B, moved_B = parts.task.sign(), rho * (parts.unified if whole else parts.task)
    centre_B = torch.empty_like(sign_B)

    def tokens(block: Block) -> dict[str, Tensor]:
        found = rule(block, sign_B[block.rows])
        centre_B[block.rows] = found.centre
        details: dict[str, Tensor] = {}
        if view.detail:
            details = {"weight_BT": found.q * rho + 1.0, "residual_BT": found.q.clone()}
            details |= {"direction_BT": found.direction, "confidence_BT": found.confidence}
        moved = found.q.mul_(view.column(moved_B, block)).add_(view.column(parts.unified, block))
        return {"advantage_BT": moved, **details}

    found = view.tokens(tokens)
    return replace(found, centre_B=centre_B.to(found.advantage_BT.dtype))
