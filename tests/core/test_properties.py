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
from nemo_uecr.core.records import ScoredBatch, Settings
from tests.core.batches import (
    CONSERVING,
    SETTINGS,
    packed,
    padded,
    ragged,
    random_responses,
    response_fields,
    same_bits,
    scalars,
    settings_of,
    token_fields,
    valid,
    with_turns,
)
from tests.core.reference import Response, Scalars


def outputs(name: str, batch: ScoredBatch, settings: Settings = SETTINGS) -> dict[str, Tensor]:
    """Every output: token fields at the sampled tokens, response fields whole."""
    result = METHODS[name].compute(batch, settings, detail=True)
    tokens = {k: valid(batch, v) for k, v in token_fields(result).items()}
    return tokens | response_fields(result)


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float) -> None:
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=tolerance, atol=tolerance, msg=key)


@given(responses=ragged(), extra=st.integers(0, 5), junk=st.sampled_from((float("nan"), float("inf"), -1e30, 0.0)))
def test_padding_and_what_it_holds_change_nothing(responses: list[Response], extra: int, junk: float) -> None:
    responses = with_turns(responses, 1)
    plain, wide = padded(responses, junk=-3.0), padded(responses, extra_columns=extra, junk=junk)
    for name in METHODS:
        a, b = outputs(name, plain), outputs(name, wide)
        assert a.keys() == b.keys()
        for key in a:
            # A longer row may be summed in another order: the last bits of the float64 sums.
            torch.testing.assert_close(a[key], b[key], rtol=1e-9, atol=1e-9, msg=f"{name} {key}")


@given(responses=ragged())
def test_packed_equals_padded(responses: list[Response]) -> None:
    responses = with_turns(responses, 2)
    for name in METHODS:
        assert_same(outputs(name, padded(responses)), outputs(name, packed(responses)), 1e-9)


@given(responses=ragged())
def test_holes_equal_the_response_without_them(responses: list[Response]) -> None:
    """Removing the masked-out columns leaves every sampled token's values as they were."""

    def dense(r: Response) -> Response:
        keep = r.valid
        pick = [tuple(values[t] for t in keep) for values in (r.old, r.teacher, r.entropy)]
        return replace(r, mask=(True,) * len(keep), old=pick[0], teacher=pick[1], entropy=pick[2])

    for name in METHODS:
        assert_same(outputs(name, padded(responses)), outputs(name, padded([dense(r) for r in responses])), 1e-9)


@given(responses=ragged(), seed=st.integers(0, 1000))
def test_order_of_the_responses_and_names_of_the_groups(responses: list[Response], seed: int) -> None:
    order, rng = list(range(len(responses))), random.Random(seed)
    rng.shuffle(order)
    old = sorted({r.group for r in responses})
    names = dict(zip(old, rng.sample(range(-(2**60), 2**60), len(old)), strict=True))
    batch, moved = padded(responses), padded([replace(responses[i], group=names[responses[i].group]) for i in order])
    for name in METHODS:
        a = METHODS[name].compute(batch, SETTINGS, detail=True)
        b = METHODS[name].compute(moved, SETTINGS, detail=True)
        for key, value in (token_fields(a) | response_fields(a)).items():
            torch.testing.assert_close(getattr(b, key), value[order], rtol=1e-9, atol=1e-9, msg=f"{name} {key}")


@given(responses=ragged(), k=scalars())
def test_the_task_component_keeps_its_budget(responses: list[Response], k: Scalars) -> None:
    """mean_t A = A^U wherever the residual is centred: credit moves within a response, by at most rho a token."""
    batch = padded(responses)
    counts = batch.mask_BT.sum(dim=1)
    for name in CONSERVING:
        got = METHODS[name].compute(batch, settings_of(k), detail=True)
        weight = valid(batch, got.weight_BT)
        assert 1.0 - k.rho - 1e-12 <= float(weight.min()) <= float(weight.max()) <= 1.0 + k.rho + 1e-12, name
        scale = 1.0 + got.advantage_unified_B.abs() + got.advantage_task_B.abs()
        error = (got.advantage_BT.sum(dim=1) / counts - got.advantage_unified_B).abs() / scale
        assert float(error.max()) <= 1e-13, name


@given(responses=ragged(), seed=st.integers(0, 99))
def test_detail_does_not_change_the_advantage(responses: list[Response], seed: int) -> None:
    batch = padded(responses, torch.float32)
    for name in METHODS:
        plain = METHODS[name].compute(batch, replace(SETTINGS, seed=seed))
        detail = METHODS[name].compute(batch, replace(SETTINGS, seed=seed), detail=True)
        assert same_bits(plain.advantage_BT, detail.advantage_BT), name
        assert plain.weight_BT is plain.residual_BT is plain.direction_BT is plain.confidence_BT is None, name


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_batch_is_not_written_to_and_the_result_has_no_graph(name: str) -> None:
    batch = padded(with_turns(random_responses(6), 6))
    before = {k: v.clone() for k, v in vars(batch).items() if isinstance(v, Tensor)}
    batch.old_logp_BT.requires_grad_()
    result = METHODS[name].compute(batch, SETTINGS, detail=True)
    assert not any(tensor.requires_grad for tensor in result.named_tensors().values())
    for key, value in before.items():
        assert torch.equal(getattr(batch, key).nan_to_num(nan=-77.0), value.nan_to_num(nan=-77.0)), key
