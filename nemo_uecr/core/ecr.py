"""ECR: a zero-sum, entropy-calibrated redistribution of the task advantage over a response's tokens.

Functions of plain tensors. Some write into their first argument, which is then a fresh tensor of the caller's.

Shape legend: b x t = some responses by their tokens; [b, 1] is one value a response.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nemo_uecr.core.puu import gap
from nemo_uecr.core.records import (
    Names,
    ScoredBatch,
    Settings,
    check_finite,
    check_per_response,
    check_scores,
    not_empty,
    rows,
)
from nemo_uecr.errors import ScoreError

#: Rounding may leave an entropy this far below zero; anything lower is a sign error in the scorer.
ENTROPY_ROUNDING = 1e-4


@torch.no_grad()
def ecr_residual(
    *,
    old_logp: Tensor,
    teacher_logp: Tensor,
    teacher_entropy: Tensor,
    mask: Tensor,
    task_advantage: Tensor,
    tau_delta: float,
    tau_entropy: float,
) -> Tensor:
    """ECR's residual ``q = 1/2 c (d - mu)``, which sums to zero over each response.

    UECR's token advantage is ``A^U + rho A^task|U q``.

    Args:
        old_logp: [..., T] log pi_old(y_t) at temperature 1, nats.
        teacher_logp: [..., T] log pi_T(y_t) at temperature 1, nats.
        teacher_entropy: [..., T] full-vocabulary teacher entropy +H at temperature 1, nats.
        mask: [..., T] bool or integer, the sampled tokens; scores elsewhere are never read.
        task_advantage: [...] A^task|U of `unified_advantage`; its sign alone is read.
        tau_delta: gap scale, nats, > 0.
        tau_entropy: entropy scale, nats, > 0.

    Returns:
        [..., T] in the dtype of the scores, 0 where the mask is False.

    Raises:
        ConfigError: If a setting is out of range.
        ScoreError: If a masked-in score or a task advantage is not finite, an entropy is negative, shapes differ, or a
            response is empty.

    References:
        eq:local-signal, eq:projection-weights, prop:projection.
    """
    Settings(tau_delta=tau_delta, tau_entropy=tau_entropy)
    mask = check_scores(mask, teacher_logp=teacher_logp, old_logp=old_logp, teacher_entropy=teacher_entropy)
    check_per_response(mask.shape[:-1], task_advantage=task_advantage)
    names = Names()
    teacher, old, entropy, mask_bt = (rows(each) for each in (teacher_logp, old_logp, teacher_entropy, mask))
    not_empty(mask_bt.sum(dim=1), names.row)
    delta = gap(teacher, old, mask_bt)
    check_finite(delta.sum(dim=1, dtype=torch.float64), mask_bt, names, teacher_logp=teacher, old_logp=old)
    d = direction(delta, task_advantage.reshape(-1).sign(), tau_delta)
    return projected(d, *confidence(entropy, mask_bt, tau_entropy, names)).q.reshape(mask.shape)


@dataclass(frozen=True)
class Residual:
    """A redistribution: ``q`` and what it was made of, [b, t], and the centre mu [b]."""

    q: Tensor
    direction: Tensor
    confidence: Tensor
    centre: Tensor


def direction(delta: Tensor, sign_b: Tensor, tau_delta: float) -> Tensor:
    """``d = tanh(s delta / (2 tau_delta))``, s the task advantage's sign; written into ``delta`` (eq:local-signal)."""
    return delta.mul_((sign_b / (2.0 * tau_delta)).to(delta.dtype).unsqueeze(1)).tanh_()


def confidence(teacher_entropy: Tensor, mask: Tensor, tau_entropy: float, names: Names) -> tuple[Tensor, Tensor]:
    """Confidence ``c = exp(-H / tau_H)`` as ``exp(-(H - min_t H) / tau_H)`` and its scale ``exp(-min_t H / tau_H)``.

    eq:local-signal. The centre mu is computed with the first factor, whose largest value is 1, so that a response whose
    confidence vanishes gives q = 0 and never 0/0. Where the mask is False it is 0.

    Raises:
        ScoreError: If an entropy is not finite or negative.
    """
    entropy = teacher_entropy.masked_fill(~mask, 0.0)
    check_finite(entropy.sum(dim=1, dtype=torch.float64), mask, names, teacher_entropy=teacher_entropy)
    lowest_b1 = entropy.masked_fill_(~mask, torch.inf).amin(dim=1, keepdim=True)
    if bool((lowest_b1 < -ENTROPY_ROUNDING).any()):
        row = int(lowest_b1[:, 0].argmin())
        raise ScoreError(
            f"teacher_entropy of {names.row(row)} falls to {float(lowest_b1[row, 0]):.6g} nats; expected +H >= 0. Some "
            "kernels return sum p log p, which is minus the entropy"
        )
    relative = entropy.sub_(lowest_b1).mul_(-1.0 / tau_entropy).exp_()
    return relative, (lowest_b1.clamp_min(0.0) * (-1.0 / tau_entropy)).exp()


def projected(d: Tensor, relative: Tensor, scale_b1: Tensor) -> Residual:
    """The projection: ``mu = sum(c d) / sum(c)``, ``q = 1/2 c (d - mu)``, which sums to zero over a response.

    eq:projection-weights, prop:projection. ``relative`` and its scale are those of `confidence`; the first is written
    into.
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
