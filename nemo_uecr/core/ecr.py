"""ECR: a zero-sum, entropy-calibrated redistribution of the task advantage over a response's tokens.

Functions of plain tensors. Some write into their first argument, which is then a fresh tensor of the caller's.

Shape legend: b x t = some responses by their tokens; [b, 1] is one value a response.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nemo_uecr.core.records import ScoredBatch


@dataclass(frozen=True)
class Residual:
    """A redistribution: ``q`` and what it was made of; direction and confidence are [b, t], centre [b]."""

    q: Tensor
    direction: Tensor
    confidence: Tensor
    centre: Tensor


def direction(delta: Tensor, sign_b: Tensor, tau_delta: float) -> Tensor:
    """``d = tanh(s delta / (2 tau_delta))``; [b, t], written into ``delta``.

    Args:
        delta: [b, t] gap, nats.
        sign_b: [b] sign s of the task advantage.
        tau_delta: gap scale, nats.

    References:
        eq:local-signal.
    """
    return delta.mul_((sign_b / (2.0 * tau_delta)).to(delta.dtype).unsqueeze(1)).tanh_()


def relative_confidence(entropy: Tensor, mask: Tensor, tau_entropy: float) -> tuple[Tensor, Tensor]:
    """Confidence ``c = exp(-H / tau_H)`` up to a factor of the response: ``exp(-(H - min_t H) / tau_H)``.

    The centre mu is computed with this form, whose largest value is 1, so that a response whose confidence vanishes
    gives q = 0 and never 0/0.

    Args:
        entropy: [b, t] teacher entropy +H, nats, finite; written into.
        mask: [b, t] bool.
        tau_entropy: entropy scale, nats.

    Returns:
        The relative confidence [b, t], 0 where the mask is False, and ``min_t H`` [b, 1], nats.

    References:
        eq:local-signal.
    """
    lowest_b1 = entropy.masked_fill_(~mask, torch.inf).amin(dim=1, keepdim=True)
    return entropy.sub_(lowest_b1).mul_(-1.0 / tau_entropy).exp_(), lowest_b1


def projected(d: Tensor, relative: Tensor, scale_b1: Tensor) -> Residual:
    """The projection: ``mu = sum(c d) / sum(c)``, ``q = 1/2 c (d - mu)``, which sums to zero over a response.

    Args:
        d: [b, t] direction, 0 where the mask is False.
        relative: [b, t] relative confidence, 0 where the mask is False; written into.
        scale_b1: [b, 1] its scale.

    References:
        eq:projection-weights, prop:projection.
    """
    weight_b1 = relative.sum(dim=1, keepdim=True, dtype=torch.float64)
    centre_b1 = (relative * d).sum(dim=1, keepdim=True, dtype=torch.float64) / weight_b1
    c = relative.mul_(scale_b1)
    q = (d - centre_b1.to(d.dtype)).mul_(c).mul_(0.5)
    return Residual(q=q, direction=d, confidence=c, centre=centre_b1[:, 0])


def unprojected(d: Tensor, relative: Tensor, scale_b1: Tensor) -> Residual:
    """Ablation: mu = 0, so ``q = 1/2 c d`` and the response's task budget moves; arguments as for `projected`."""
    c = relative.mul_(scale_b1)
    return Residual(q=c * d * 0.5, direction=d, confidence=c, centre=d.new_zeros(d.shape[0], dtype=torch.float64))


def confidence_alone(relative: Tensor, scale_b1: Tensor, mask: Tensor, sign_b: Tensor) -> Residual:
    """Ablation without the gap: ``q = 1/2 s (c - mean(c))``.

    The literal reading, d = s, would make every direction equal and hence q = 0.
    """
    c = relative.mul_(scale_b1)
    mean_b1 = c.sum(dim=1, keepdim=True, dtype=torch.float64) / mask.sum(dim=1, keepdim=True)
    s = sign_b.to(c.dtype).unsqueeze(1)
    q = (c - mean_b1.to(c.dtype)).mul_(0.5 * s).masked_fill_(~mask, 0.0)
    return Residual(q=q, direction=s * mask, confidence=c, centre=(mean_b1[:, 0] * sign_b))


def with_shuffled_entropy(batch: ScoredBatch, *, seed: int) -> ScoredBatch:
    """The permutation control: H^T keeps its values and loses its positions within each response.

    The permutation depends on the seed and the number of sampled tokens only, so it does not change with padding,
    with the order of responses, or with how the batch is split.

    Args:
        batch: the responses.
        seed: which permutation.
    """
    entropy_BT = batch.scores("teacher_entropy")
    shuffled_BT = entropy_BT.clone()
    for block in batch.blocks:
        rows = zip(block.of(batch.mask_BT), block.of(entropy_BT), block.of(shuffled_BT), strict=True)
        for mask_T, source_T, target_T in rows:
            values = source_T[mask_T]
            generator = torch.Generator().manual_seed((seed * 1_000_003 + len(values)) % 2**64)
            target_T[mask_T] = values[torch.randperm(len(values), generator=generator).to(values.device)]
    return replace(batch, teacher_entropy_BT=shuffled_BT)
