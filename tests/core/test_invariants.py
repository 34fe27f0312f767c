"""Each identity sees a planted violation, and no method violates its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given

from nemo_uecr.core.invariants import IDENTITIES, check_identities
from nemo_uecr.core.methods import METHODS, Advantages
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.errors import InvariantError
from tests.core.batches import SETTINGS, any_settings, computed, configured, mixed_responses, padded, ragged
from tests.core.reference import Response, Settings

#: The tolerances for float32 storage.
STORED = {"decomposition": 1e-6, "budget": 1e-6, "residual_bound": 1e-6, "log_weight": 1e-6}
DOUBLE = dict.fromkeys(STORED, 1e-12)
ROW = 5


def made(name: str) -> tuple[ScoredBatch, Advantages]:
    batch = padded(mixed_responses(31), torch.float32)
    return batch, computed(name, batch)


@given(responses=ragged(), k=any_settings())
def test_every_method_keeps_its_own(responses: list[Response], k: Settings) -> None:
    for dtype, tolerances in ((torch.float32, STORED), (torch.float64, DOUBLE)):
        batch = padded(responses, dtype)
        for name, method in METHODS.items():
            worst = check_identities(configured(name, k), batch, computed(name, batch, k), tolerances)
            assert set(worst) == {*method.identities, *method.monitored}, name
            assert all(math.isfinite(v) for v in worst.values()), name


#: What is planted at response ROW, and at its first sampled token: a field, and its value there from the one before.
PLANTED = {
    "finite": ("advantage_BT", lambda _: math.nan),
    "decomposition": ("advantage_unified_B", lambda before: before + 1e-3),
    "budget": ("weight_BT", lambda before: before + 1e-3),
    "residual_bound": ("residual_BT", lambda _: -1.01),
    "sign_kept": ("weight_BT", lambda _: 0.0),
    "log_weight": ("weight_BT", lambda before: before * math.e),
}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_planted_violation_is_found_named_and_of_the_stated_size(
    identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(name for name in ("uecr", *METHODS) if identity in METHODS[name].identities)
    batch, result = made(name)
    field, value = PLANTED[identity]
    tensor, tokens = getattr(result, field).clone(), int(batch.mask_BT[ROW].sum())
    place = (ROW, int(batch.mask_BT[ROW].nonzero()[0])) if field.endswith("_BT") else (ROW,)
    tensor[place] = value(tensor[place])
    broken = replace(result, **{field: tensor})
    found = IDENTITIES[identity][1](configured(name, SETTINGS), batch, broken)
    assert found.shape == (batch.responses,)
    assert int(found.argmax()) == ROW
    expected = {"finite": 1.0, "sign_kept": 1.0, "residual_bound": 0.01, "budget": 1e-3 / tokens}
    if identity == "log_weight":
        assert result.advantage_task_B[ROW] > 0
        expected[identity] = 1.0 / tokens
    elif identity == "decomposition":
        parts = float(result.advantage_task_B[ROW].abs() + 1.3 * result.advantage_teacher_B[ROW].abs())
        expected[identity] = 1e-3 / max(1.0, parts)
    assert float(found[ROW]) == pytest.approx(expected[identity], rel=1e-2)
    monkeypatch.setattr(METHODS[name], "identities", (identity,))
    with pytest.raises(InvariantError, match=rf"identity '{identity}' .* at response {ROW}; .* method {name}"):
        check_identities(configured(name, SETTINGS), batch, broken, STORED)


def test_what_lies_outside_the_mask_is_no_violation() -> None:
    batch, result = made("uecr")
    off = ~batch.mask_BT
    junk = {"advantage_BT": math.nan, "weight_BT": -5.0, "residual_BT": 9.0}
    broken = replace(result, **{key: getattr(result, key).masked_fill(off, value) for key, value in junk.items()})
    check_identities(configured("uecr", SETTINGS), batch, broken, STORED)


def test_a_monitored_identity_is_reported_and_never_fails() -> None:
    batch, result = made("ecr_no_projection")
    worst = check_identities(configured("ecr_no_projection", SETTINGS), batch, result, STORED)
    assert worst["budget"] > 0.01, "without the projection the budget moves visibly on this batch"
