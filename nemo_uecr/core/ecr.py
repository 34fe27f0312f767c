"""ECR: a zero-sum, entropy-calibrated redistribution of the task advantage over a response's tokens.

Shape legend: B = responses, T = tokens, b x t = one block of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.checks import check_finite
from nemo_uecr.core.layout import Block
from nemo_uecr.core.puu import gap
from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.errors import ScoreError

#: Rounding may leave an entropy this far below zero; anything lower is a sign error in the scorer.
ENTROPY_ROUNDING = 1e-4


@dataclass(frozen=True)
class Residual:
    """A block's redistribution: ``q`` and what it was made of; direction and confidence are [b, t], centre [b]."""

    q: Tensor
    direction: Tensor
    confidence: Tensor
    centre: Tensor


def direction(batch: ScoredBatch, block: Block, sign_b: Tensor, tau_delta: float) -> Tensor:
    """``d = tanh(s delta / (2 tau_delta))``, 0 where the mask is False; [b, t].

    References:
        eq:local-signal.
    """
    delta = gap(batch, block)
    return delta.mul_((sign_b / (2.0 * tau_delta)).to(delta.dtype).unsqueeze(1)).tanh_()


def confidence(batch: ScoredBatch, block: Block, tau_entropy: float) -> tuple[Tensor, Tensor]:
    """Relative confidence ``exp(-(H - min_t H) / tau_H)`` [b, t] and its scale ``exp(-min_t H / tau_H)`` [b, 1].

    Their product is c. The centre is computed with the relative form, whose largest value is 1, so that a response
    whose confidence vanishes gives q = 0 and never 0/0.

    References:
        eq:local-signal.
    """
    outside = ~block.of(batch.mask_BT)
    entropy = _finite_entropy(batch, block, outside).masked_fill_(outside, torch.inf)
    lowest_b1 = entropy.amin(dim=1, keepdim=True)
    if bool((lowest_b1 < -ENTROPY_ROUNDING).any()):
        _raise_negative(batch, block, lowest_b1)
    relative = entropy.sub_(lowest_b1).mul_(-1.0 / tau_entropy).exp_()
    return relative, (lowest_b1.clamp_min(0.0) * (-1.0 / tau_entropy)).exp()


def projected(batch: ScoredBatch, block: Block, sign_b: Tensor, *, tau_delta: float, tau_entropy: float) -> Residual:
    """Full ECR: ``mu = sum(c d) / sum(c)``, ``q = 1/2 c (d - mu)``, which sums to zero.

    References:
        eq:projection-weights, prop:projection.
    """
    d = direction(batch, block, sign_b, tau_delta)
    relative, scale_b1 = confidence(batch, block, tau_entropy)
    return _centred(d, relative, scale_b1)


def without_entropy(batch: ScoredBatch, block: Block, sign_b: Tensor, *, tau_delta: float) -> Residual:
    """Ablation: c = 1 on every sampled token, projection recomputed."""
    d = direction(batch, block, sign_b, tau_delta)
    return _centred(d, block.of(batch.mask_BT).to(d.dtype), d.new_ones((d.shape[0], 1)))


def without_projection(
    batch: ScoredBatch, block: Block, sign_b: Tensor, *, tau_delta: float, tau_entropy: float
) -> Residual:
    """Ablation: mu = 0, so ``q = 1/2 c d`` and the response's task budget moves."""
    d = direction(batch, block, sign_b, tau_delta)
    relative, scale_b1 = confidence(batch, block, tau_entropy)
    c = relative.mul_(scale_b1)
    return Residual(q=c * d * 0.5, direction=d, confidence=c, centre=d.new_zeros(d.shape[0], dtype=torch.float64))


def without_gap(batch: ScoredBatch, block: Block, sign_b: Tensor, *, tau_entropy: float) -> Residual:
    """Ablation: confidence alone, ``q = 1/2 s (c - mean(c))``.

    The literal reading, d = s, would make every direction equal and hence q = 0.
    """
    mask = block.of(batch.mask_BT)
    relative, scale_b1 = confidence(batch, block, tau_entropy)
    c = relative.mul_(scale_b1)
    mean_b1 = c.sum(dim=1, keepdim=True, dtype=torch.float64) / mask.sum(dim=1, keepdim=True)
    s = sign_b.to(c.dtype).unsqueeze(1)
    q = (c - mean_b1.to(c.dtype)).mul_(0.5 * s).masked_fill_(~mask, 0.0)
    return Residual(q=q, direction=s * mask, confidence=c, centre=(mean_b1[:, 0] * sign_b))


def _centred(d: Tensor, relative: Tensor, scale_b1: Tensor) -> Residual:
    weight_b1 = relative.sum(dim=1, keepdim=True, dtype=torch.float64)
    centre_b1 = (relative * d).sum(dim=1, keepdim=True, dtype=torch.float64) / weight_b1
    c = relative.mul_(scale_b1)
    q = (d - centre_b1.to(d.dtype)).mul_(c).mul_(0.5)
    return Residual(q=q, direction=d, confidence=c, centre=centre_b1[:, 0])


def check_entropy(batch: ScoredBatch) -> None:
    """Raise when a masked-in entropy is missing or not finite."""
    for block in batch.blocks:
        _finite_entropy(batch, block, ~block.of(batch.mask_BT))


def _finite_entropy(batch: ScoredBatch, block: Block, outside: Tensor) -> Tensor:
    if batch.teacher_entropy_BT is None:
        raise ScoreError("the batch has no teacher_entropy; expected the teacher's entropy, which this method needs")
    entropy = block.of(batch.teacher_entropy_BT).masked_fill(outside, 0.0)
    check_finite(batch, block, entropy.sum(dim=1, dtype=torch.float64), ("teacher_entropy",))
    return entropy


def _raise_negative(batch: ScoredBatch, block: Block, lowest_b1: Tensor) -> None:
    row = int(lowest_b1[:, 0].argmin())
    raise ScoreError(
        f"teacher_entropy of {batch.name_of(block.rows.start + row)} falls to {float(lowest_b1[row, 0]):.6g} nats; "
        "expected +H >= 0. Some kernels return sum p log p, which is minus the entropy"
    )
