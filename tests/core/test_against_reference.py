"""Every method against the slow reference on random ragged batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given

from nemo_uecr.core.ecr import with_shuffled_entropy
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import Advantages, ScoredBatch
from tests.core import reference
from tests.core.batches import (
    SCALARS,
    close,
    packed,
    padded,
    ragged,
    random_responses,
    reference_valid,
    scalars,
    settings_of,
    valid,
    with_turns,
)
from tests.core.reference import Response, Scalars

TOKEN_PAIRS = {
    "advantage": "advantage_BT",
    "advantage_opd": "advantage_opd_BT",
    "weight": "weight_BT",
    "residual": "residual_BT",
    "direction": "direction_BT",
    "confidence": "confidence_BT",
}
RESPONSE_PAIRS = {"unified": "advantage_unified_B", "task": "advantage_task_B", "teacher": "advantage_teacher_B"}


def permuted(responses: Sequence[Response], batch: ScoredBatch, seed: int) -> list[Response]:
    """The responses with the package's permutation of their entropies."""
    shuffled = with_shuffled_entropy(batch, seed=seed).teacher_entropy_BT
    out, cursor = [], 0
    for row, r in enumerate(responses):
        length = len(r.mask)
        values = shuffled[cursor : cursor + length] if batch.offsets is not None else shuffled[row, :length]
        out.append(Response(r.task, r.group, r.mask, r.old, r.teacher, tuple(values.tolist()), r.segments))
        cursor += length
    return out


def compare(name: str, responses: Sequence[Response], batch: ScoredBatch, k: Scalars, tolerance: float) -> None:
    got = METHODS[name].compute(batch, settings_of(k), detail=True)
    source = permuted(responses, batch, 7) if name == "shuffled_entropy" else list(responses)
    expected = reference.METHODS[name](source, k)
    assert_agrees(name, responses, batch, got, expected, tolerance)


def assert_agrees(
    name: str,
    responses: Sequence[Response],
    batch: ScoredBatch,
    got: Advantages,
    expected: reference.Result,
    tolerance: float,
) -> None:
    for key, attribute in TOKEN_PAIRS.items():
        rows, tensor = getattr(expected, key), getattr(got, attribute)
        assert (tensor is not None) == bool(rows), f"{name}: {attribute} presence"
        if rows:
            wanted = reference_valid(responses, rows)
            assert close(valid(batch, tensor), wanted, tolerance), f"{name}: {attribute}"
            off = 1.0 if key == "weight" else 0.0
            assert bool((tensor[~batch.mask_BT] == off).all()), f"{name}: {attribute} where the mask is False"
    for key, attribute in RESPONSE_PAIRS.items():
        values, tensor = getattr(expected, key), getattr(got, attribute)
        assert (tensor is not None) == bool(values), f"{name}: {attribute} presence"
        if values:
            assert close(tensor, torch.tensor(values, dtype=torch.float64), tolerance), f"{name}: {attribute}"
    assert (got.teacher_reward_B is None) == (name == "grpo")
    if got.teacher_reward_B is not None:
        rewards = torch.tensor([reference.teacher_reward(r) for r in responses], dtype=torch.float64)
        assert close(got.teacher_reward_B, rewards, tolerance)


def test_both_sides_name_the_same_methods() -> None:
    assert set(METHODS) == set(reference.METHODS)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_float64(name: str) -> None:
    responses = with_turns(random_responses(1), 1)
    for batch in (padded(responses), packed(responses)):
        compare(name, responses, batch, SCALARS, 1e-12)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_float32(name: str) -> None:
    # One rounding of delta (|logp| < 16: 5e-7), one of d, c, q and A each: a few 1e-7 in all.
    responses = random_responses(3, (8, 8, 4), 40)
    compare(name, responses, padded(responses, torch.float32), SCALARS, 3e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_many_blocks(name: str) -> None:
    # 2 x 70 columns of width 40,000 exceed one block of the walk, so rows fall into several blocks.
    responses = random_responses(3, (3, 2), 60)
    batch = padded(responses, extra_columns=40_000)
    compare(name, responses, batch, SCALARS, 1e-12)


@given(responses=ragged(), k=scalars())
def test_over_the_range_of_settings(responses: list[Response], k: Scalars) -> None:
    batch = padded(responses)
    for name in METHODS:
        # Where a group's spread is tiny, eps = 1e-6 divides rounding of 1e-16 up to 1e-10.
        compare(name, responses, batch, k, 1e-9)
