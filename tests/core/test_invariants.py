"""Each identity sees a planted violation, and no method violates its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given

from nemo_uecr.core.invariants import IDENTITIES, check_identities
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import Advantages, ScoredBatch
from nemo_uecr.errors import InvariantError
from tests.core.batches import SETTINGS, mixed_responses, padded, ragged, scalars, settings_of
from tests.core.reference import Response, Scalars

#: The tolerances for float32 storage.
STORED = {"decomposition": 1e-6, "budget": 1e-6, "residual_bound": 1e-6, "log_weight": 1e-6}
DOUBLE = dict.fromkeys(STORED, 1e-12)
ROW = 5


def computed(name: str) -> tuple[ScoredBatch, Advantages]:
    batch = padded(mixed_responses(31), torch.float32)
    return batch, METHODS[name].compute(batch, SETTINGS, detail=True)


@given(responses=ragged(), k=scalars())
def test_every_method_keeps_its_own(responses: list[Response], k: Scalars) -> None:
    for dtype, tolerances in ((torch.float32, STORED), (torch.float64, DOUBLE)):
        batch = padded(responses, dtype)
        for name, method in METHODS.items():
            settings = settings_of(k)
            result = method.compute(batch, settings, detail=True)
            worst = check_identities(method, batch, settings, result, tolerances)
            assert set(worst) == {*method.identities, *method.monitored}, name
            assert all(math.isfinite(v) for v in worst.values()), name


def planted(result: Advantages, batch: ScoredBatch, identity: str) -> Advantages:
    """The result with one violation at response ROW, sampled token ``column``."""
    column = int(batch.mask_BT[ROW].nonzero()[0])

    def changed(field: str, value: float, *, add: bool = False) -> Advantages:
        tensor = getattr(result, field).clone()
        place = (ROW, column) if field.endswith("_BT") else (ROW,)
        tensor[place] = tensor[place] + value if add else value
        return replace(result, **{field: tensor})

    return {
        "finite": lambda: changed("advantage_BT", math.nan),
        "decomposition": lambda: changed("advantage_unified_B", 1e-3, add=True),
        "budget": lambda: changed("weight_BT", 1e-3, add=True),
        "residual_bound": lambda: changed("residual_BT", -1.01),
        "sign_kept": lambda: changed("weight_BT", 0.0),
        "log_weight": lambda: changed("weight_BT", 3.5),
    }[identity]()


#: Each identity once, with the first method that promises it.
VIOLATIONS = {identity: name for name, method in reversed(METHODS.items()) for identity in method.identities}


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_planted_violation_is_found_and_named(identity: str) -> None:
    name = VIOLATIONS[identity]
    batch, result = computed(name)
    assert result.advantage_task_B is None or identity != "log_weight" or result.advantage_task_B[ROW] > 0
    broken = planted(result, batch, identity)
    before = IDENTITIES[identity].residual(batch, SETTINGS, result)
    after = IDENTITIES[identity].residual(batch, SETTINGS, broken)
    assert after.shape == (batch.responses,)
    assert int(after.argmax()) == ROW
    assert float(after[ROW]) > 1e-5 + float(before[ROW])
    method = replace(METHODS[name], identities=(identity,), monitored=())
    with pytest.raises(InvariantError, match=rf"identity '{identity}' .* at response {ROW}; .* method {name}"):
        check_identities(method, batch, SETTINGS, broken, STORED)


def test_residuals_have_the_stated_size() -> None:
    batch, result = computed("uecr")
    parts = float(result.advantage_task_B[ROW].abs() + 1.3 * result.advantage_teacher_B[ROW].abs())
    for identity, expected in (
        ("decomposition", 1e-3 / max(1.0, parts)),
        ("budget", 1e-3 / int(batch.mask_BT[ROW].sum())),
        ("residual_bound", 0.01),
        ("sign_kept", 1.0),
        ("finite", 1.0),
    ):
        got = IDENTITIES[identity].residual(batch, SETTINGS, planted(result, batch, identity))[ROW]
        assert float(got) == pytest.approx(expected, rel=1e-2), identity


def test_what_lies_outside_the_mask_is_no_violation() -> None:
    batch, result = computed("uecr")
    off = ~batch.mask_BT
    broken = replace(
        result,
        advantage_BT=result.advantage_BT.masked_fill(off, math.nan),
        weight_BT=result.weight_BT.masked_fill(off, -5.0),
        residual_BT=result.residual_BT.masked_fill(off, 9.0),
    )
    check_identities(METHODS["uecr"], batch, SETTINGS, broken, STORED)


def test_a_monitored_identity_is_reported_and_never_fails() -> None:
    batch, result = computed("ecr_no_projection")
    worst = check_identities(METHODS["ecr_no_projection"], batch, SETTINGS, result, STORED)
    assert worst["budget"] > 0.01, "without the projection the budget moves visibly on this batch"
