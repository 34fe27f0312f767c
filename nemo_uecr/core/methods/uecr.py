"""UECR and its token-credit ablations: each is one residual rule and one component that it redistributes.

Shape legend: B = responses, T = tokens, b x t = one block of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nemo_uecr.core import ecr
from nemo_uecr.core.layout import Block
from nemo_uecr.core.methods.base import Compute, Method
from nemo_uecr.core.methods.unified import unified
from nemo_uecr.core.puu import UnifiedAdvantage
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.core.shuffle import with_shuffled_entropy

#: (batch, block, sign of A^task|U [b], settings) -> the block's residual
Rule = Callable[[ScoredBatch, Block, Tensor, Settings], ecr.Residual]

#: What zero-sum weights promise: unit mean, |q| <= 1, the task component's sign, and PUU's exact decomposition.
CONSERVING = ("finite", "decomposition", "budget", "residual_bound", "sign_kept")


@dataclass(frozen=True)
class _Detail:
    """Token-level tensors filled block by block."""

    weight_BT: Tensor
    residual_BT: Tensor
    direction_BT: Tensor
    confidence_BT: Tensor

    @classmethod
    def like(cls, tokens_BT: Tensor) -> _Detail:
        return cls(torch.ones_like(tokens_BT), *(torch.zeros_like(tokens_BT) for _ in range(3)))

    def fill(self, block: Block, residual: ecr.Residual, rho: float) -> None:
        block.of(self.weight_BT).copy_(residual.q * rho + 1.0)
        block.of(self.residual_BT).copy_(residual.q)
        block.of(self.direction_BT).copy_(residual.direction)
        block.of(self.confidence_BT).copy_(residual.confidence)


def _projected(batch: ScoredBatch, block: Block, sign_b: Tensor, settings: Settings) -> ecr.Residual:
    tau_delta, tau_entropy = settings.need("tau_delta", "uecr"), settings.need("tau_entropy", "uecr")
    return ecr.projected(batch, block, sign_b, tau_delta=tau_delta, tau_entropy=tau_entropy)


def _without_entropy(batch: ScoredBatch, block: Block, sign_b: Tensor, settings: Settings) -> ecr.Residual:
    return ecr.without_entropy(batch, block, sign_b, tau_delta=settings.need("tau_delta", "ecr_no_entropy"))


def _without_projection(batch: ScoredBatch, block: Block, sign_b: Tensor, settings: Settings) -> ecr.Residual:
    tau_delta = settings.need("tau_delta", "ecr_no_projection")
    tau_entropy = settings.need("tau_entropy", "ecr_no_projection")
    return ecr.without_projection(batch, block, sign_b, tau_delta=tau_delta, tau_entropy=tau_entropy)


def _without_gap(batch: ScoredBatch, block: Block, sign_b: Tensor, settings: Settings) -> ecr.Residual:
    return ecr.without_gap(batch, block, sign_b, tau_entropy=settings.need("tau_entropy", "ecr_no_gap"))


def _task_component(parts: UnifiedAdvantage) -> Tensor:
    return parts.task_B


def _whole_advantage(parts: UnifiedAdvantage) -> Tensor:
    return parts.unified_B


def _given_alpha(settings: Settings) -> float:
    return settings.need("alpha", "uecr")


def _zero_alpha(settings: Settings) -> float:
    return 0.0


def _redistribution(
    rule: Rule,
    component: Callable[[UnifiedAdvantage], Tensor] = _task_component,
    alpha: Callable[[Settings], float] = _given_alpha,
) -> Compute:
    """The computation ``A = A^U + rho X q`` for one residual rule and one redistributed component X.

    The task component's form ``A^task|U (1 + rho q) + alpha A^T|U`` is the same number but not the same bits: at
    rho = 0 it would not reproduce A^U.

    References:
        eq:final-advantage, prop:invariants.
    """

    def compute(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
        rho = settings.need("rho", "uecr")
        parts, base = unified(batch, settings, "uecr", alpha=alpha(settings))
        out_BT = base.advantage_BT
        tokens = _Detail.like(out_BT) if detail else None
        sign_B, moved_B = parts.task_B.sign(), rho * component(parts)
        centre_B = torch.empty_like(sign_B)
        for block in batch.blocks:
            residual = rule(batch, block, sign_B[block.rows], settings)
            centre_B[block.rows] = residual.centre
            if tokens is not None:
                tokens.fill(block, residual, rho)
            # q is 0 where the mask is False, so what was broadcast there stays 0.
            scale_b1 = moved_B[block.rows].to(out_BT.dtype).unsqueeze(1)
            block.of(out_BT).add_(residual.q.mul_(scale_b1))
            del residual  # or two blocks' temporaries would be alive at once
        return replace(
            base,
            centre_B=centre_B.to(out_BT.dtype),
            weight_BT=tokens.weight_BT if tokens else None,
            residual_BT=tokens.residual_BT if tokens else None,
            direction_BT=tokens.direction_BT if tokens else None,
            confidence_BT=tokens.confidence_BT if tokens else None,
        )

    return compute


_full = _redistribution(_projected)


def _shuffled(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    ecr.check_entropy(batch)
    return _full(with_shuffled_entropy(batch, seed=settings.need_int("seed", "shuffled_entropy")), settings, detail)


UECR = Method(
    name="uecr",
    equation="A = A^U + rho A^task|U q; q = 1/2 c (d - mu), d = tanh(s delta / 2 tau_delta), c = exp(-H / tau_entropy)",
    provenance="eq:local-signal, eq:projection-weights, eq:final-advantage",
    identities=CONSERVING,
    advantages=_full,
)
ECR_NO_ENTROPY = Method(
    name="ecr_no_entropy",
    equation="UECR with c = 1 and the projection recomputed",
    provenance="tab:component-ablation, 'w/o entropy'",
    identities=CONSERVING,
    advantages=_redistribution(_without_entropy),
)
ECR_NO_PROJECTION = Method(
    name="ecr_no_projection",
    equation="UECR with mu = 0, so q = 1/2 c d and the response's task budget moves",
    provenance="tab:component-ablation, 'w/o projection'",
    identities=("finite", "decomposition"),
    monitored=("budget",),
    advantages=_redistribution(_without_projection),
)
ECR_FULL_ADVANTAGE = Method(
    name="ecr_full_advantage",
    equation="A = A^U (1 + rho q): the weight multiplies the whole unified advantage",
    provenance="the paper's additional controls, item 4",
    identities=CONSERVING,
    advantages=_redistribution(_projected, component=_whole_advantage),
)
ECR_ALPHA_ZERO = Method(
    name="ecr_alpha_zero",
    equation="UECR with alpha = 0: A = A^GRPO (1 + rho q)",
    provenance="the paper's additional controls, item 5",
    identities=CONSERVING,
    advantages=_redistribution(_projected, alpha=_zero_alpha),
)
ECR_NO_GAP = Method(
    name="ecr_no_gap",
    equation="UECR with q = 1/2 s (c - mean(c)): confidence alone gives the direction",
    provenance="the paper's additional controls, item 6; the form is not in the paper (its literal d = s gives q = 0)",
    identities=CONSERVING,
    advantages=_redistribution(_without_gap),
)
SHUFFLED_ENTROPY = Method(
    name="shuffled_entropy",
    equation="UECR with the teacher entropies permuted within each response",
    provenance="the permutation control of the credit-localization audit",
    identities=CONSERVING,
    advantages=_shuffled,
)
