"""What must not change the advantages, and what must hold for any valid batch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.record import ScoredBatch
from tests.core.batches import computed, padded, present, ragged, random_responses, same_bits, valid, with_turns
from tests.core.reference import Response


def outputs(name: str, batch: ScoredBatch) -> dict[str, Tensor]:
    """Every output: token fields at the sampled tokens, response fields whole."""
    result = computed(name, batch)
    return {k: valid(batch, v) for k, v in present(result, "_BT").items()} | present(result, "_B")


def assert_same(one: ScoredBatch, *others: ScoredBatch) -> None:
    """Every method gives the same on all, up to the last bits of sums."""
    for name in METHODS:
        a = outputs(name, one)
        for other in others:
            b = outputs(name, other)
            assert a.keys() == b.keys()
            for key in a:
                torch.testing.assert_close(a[key], b[key], rtol=1e-9, atol=1e-9, msg=f"{name} {key}")


@given(responses=ragged(), extra=st.integers(0, 5), junk=st.sampled_from((float("nan"), float("inf"), -1e30, 0.0)))
def test_padding_and_holes_change_nothing(responses: list[Response], extra: int, junk: float) -> None:
    """More columns, whatever they hold; and the columns that are masked out taken away."""
    responses = with_turns(responses, 1)
    plain, wider = padded(responses, junk=-3.0), padded(responses, extra_columns=extra, junk=junk)

    def dense(r: Response) -> Response:
        fields = ("mask", "old", "teacher", "entropy", "segments")
        return replace(r, **{field: tuple(getattr(r, field)[t] for t in r.valid) for field in fields})

    assert_same(plain, wider, padded([dense(r) for r in responses]))


@given(responses=ragged(), seed=st.integers(0, 1000))
def test_order_of_the_responses_and_names_of_the_groups(responses: list[Response], seed: int) -> None:
    order, rng = list(range(len(responses))), random.Random(seed)
    rng.shuffle(order)
    old = sorted({r.group for r in responses})
    names = dict(zip(old, rng.sample(range(-(2**60), 2**60), len(old)), strict=True))
    moved = [replace(responses[i], group=names[responses[i].group]) for i in order]
    batch, other = padded(responses), padded(moved)
    for name in METHODS:
        a = computed(name, batch)
        b = computed(name, other)
        for key, value in (present(a, "_BT") | present(a, "_B")).items():
            torch.testing.assert_close(getattr(b, key), value[order], rtol=1e-9, atol=1e-9, msg=f"{name} {key}")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_batch_is_not_written_to_and_the_result_has_no_graph(name: str) -> None:
    batch = padded(with_turns(random_responses(6), 6), torch.float32)
    batch = replace(batch, old_logp_BT=batch.old_logp_BT.requires_grad_())
    before = {k: v.detach().clone() for k, v in vars(batch).items() if isinstance(v, Tensor)}
    found = computed(name, batch)
    assert not any(tensor.requires_grad for tensor in found.named_tensors().values())
    for key, value in before.items():
        assert same_bits(getattr(batch, key).detach(), value), key
