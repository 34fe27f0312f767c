"""What another way of computing the teacher's scores does to what the methods read: gap, entropy, advantages.

Shape legend: B = responses, T = tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.errors import DataError


@dataclass(frozen=True)
class Effect:
    """How one quantity differs between two ways; in its own unit.

    Attributes:
        quantity: what it is.
        unit: its unit.
        spread: standard deviation of the first way's values, to measure the differences by.
        bias: mean difference, second minus first.
        mean: mean magnitude of the difference.
        high: 99th percentile of the magnitude.
        largest: largest magnitude.
        flipped: share of values whose sign changed; None where the sign means nothing.
    """

    quantity: str
    unit: str
    spread: float
    bias: float
    mean: float
    high: float
    largest: float
    flipped: float | None


def teacher_effect(first: ScoredBatch, second: ScoredBatch, advantage: Callable[[ScoredBatch], Tensor]) -> list[Effect]:
    """Compare two teachers' scores of the same tokens.

        delta_t = log pi_T(y_t) - log pi_old(y_t),   H_t = -sum_v p_T(v) log p_T(v)

    Args:
        first: the batch with the scores that count as right (bf16).
        second: the same batch with the scores in question (FP8).
        advantage: [B, T] final advantages of a batch.

    Returns:
        Gap in nats a token, entropy in nats a token where both have it, and advantage.

    Raises:
        DataError: the two are not about the same tokens, or one has no teacher scores.
    """
    _check_same(first, second)
    mask_BT = first.mask_BT
    effects = [_effect("gap", "nats", _gap(first)[mask_BT], _gap(second)[mask_BT], signed=True)]
    entropies = (first.teacher_entropy_BT, second.teacher_entropy_BT)
    if entropies[0] is not None and entropies[1] is not None:
        effects.append(_effect("entropy", "nats", entropies[0][mask_BT], entropies[1][mask_BT], signed=False))
    effects.append(_effect("advantage", "1", advantage(first)[mask_BT], advantage(second)[mask_BT], signed=True))
    return effects


def _gap(batch: ScoredBatch) -> Tensor:
    if batch.teacher_logp_BT is None:
        raise DataError("a batch has no teacher_logp; expected the scores of a teacher")
    return batch.teacher_logp_BT - batch.old_logp_BT


def _check_same(first: ScoredBatch, second: ScoredBatch) -> None:
    """Where nothing was sampled there may be anything, also what does not equal itself."""
    for name in ("mask_BT", "group_B", "task_reward_B", "old_logp_BT"):
        ours, theirs = getattr(first, name), getattr(second, name)
        if name == "old_logp_BT":
            ours, theirs = ours[first.mask_BT], theirs[second.mask_BT]
        if not torch.equal(ours, theirs):
            shown = name.rpartition("_")[0]
            raise DataError(f"{shown} differs between the two; expected one batch, scored by the teacher in two ways")


def _effect(quantity: str, unit: str, before_N: Tensor, after_N: Tensor, *, signed: bool) -> Effect:
    before_N, after_N = before_N.double(), after_N.double()
    difference_N = after_N - before_N
    size_N = difference_N.abs().sort().values
    return Effect(
        quantity,
        unit,
        spread=float(before_N.std(correction=0)),
        bias=float(difference_N.mean()),
        mean=float(size_N.mean()),
        # The smallest magnitude that at least 99% do not exceed; torch.quantile stops at 2^24 values.
        high=float(size_N[-(-99 * size_N.numel() // 100) - 1]),
        largest=float(size_N[-1]),
        flipped=float((before_N.sign() != after_N.sign()).double().mean()) if signed else None,
    )
