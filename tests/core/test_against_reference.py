"""Every method against the slow reference on random ragged batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.core.methods import METHODS, Advantages
from nemo_uecr.core.record import ScoredBatch
from tests.core import reference
from tests.core.batches import SETTINGS, any_settings, computed, padded, ragged, random_responses, valid, with_turns
from tests.core.reference import Response, Settings

COMPARED = [each.name for each in fields(Advantages) if each.name != "state"]


def permuted(responses: Sequence[Response], batch: ScoredBatch) -> list[Response]:
    """The responses with the package's permutation of their entropies."""
    shuffled = batch.with_shuffled_entropy(7).teacher_entropy_BT
    pairs = zip(responses, shuffled, strict=True)
    return [replace(r, entropy=tuple(values[: len(r.mask)].tolist())) for r, values in pairs]


def compare(name: str, responses: list[Response], batch: ScoredBatch, k: Settings, tolerance: float) -> None:
    """|got - expected| <= tolerance (1 + |expected|), the same fields present, and what stands off the mask."""
    got = computed(name, batch, k)
    source = permuted(responses, batch) if name == "shuffled_entropy" else responses
    expected = reference.METHODS[name](source, k)
    if METHODS[name].needs_teacher():
        expected["teacher_reward_B"] = [reference.teacher_reward(r) for r in responses]
    assert (got.state or {}) == pytest.approx(expected.get("state", {}), rel=tolerance, abs=tolerance), name
    for key in COMPARED:
        tensor, rows = getattr(got, key), expected.get(key)
        assert (tensor is None) == (rows is None), f"{name}: {key} presence"
        if rows is None:
            continue
        if key.endswith("_BT"):
            assert bool((tensor[~batch.mask_BT] == float(key == "weight_BT")).all()), f"{name}: {key} off the mask"
            tensor = valid(batch, tensor)
            rows = [row[t] for r, row in zip(responses, rows, strict=True) for t in r.valid]
        wanted = torch.tensor(rows, dtype=torch.float64)
        torch.testing.assert_close(tensor.double(), wanted, rtol=tolerance, atol=tolerance, msg=f"{name}: {key}")


def test_every_method_of_the_reference_is_there() -> None:
    assert set(reference.METHODS) <= set(METHODS)


@pytest.mark.parametrize("name", sorted(reference.METHODS))
def test_both_types(name: str) -> None:
    responses = with_turns(random_responses(1), 1)
    compare(name, responses, padded(responses), SETTINGS, 1e-12)
    # One rounding of delta (|logp| < 16: 5e-7), one of d, c, q and A each: a few 1e-7 in all.
    many = random_responses(3, (8, 8, 4), 40)
    compare(name, many, padded(many, torch.float32), SETTINGS, 3e-6)


@given(
    responses=ragged(),
    k=any_settings(),
    extra=st.integers(0, 3),
    junk=st.sampled_from((float("nan"), float("inf"), -1e30, 0.0)),
)
def test_over_the_range_of_settings(responses: list[Response], k: Settings, extra: int, junk: float) -> None:
    """Whatever the order of the responses, the holes in their masks, and the padding and what it holds."""
    for name in reference.METHODS:
        # Where a group's spread is tiny, eps = 1e-6 divides rounding of 1e-16 up to 1e-10.
        compare(name, responses, padded(responses, extra_columns=extra, junk=junk), k, 1e-9)
