"""Teachers, verdicts, lengths and groups that were made to fool the trust of `uecr_trust`."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest
import torch

import nemo_uecr
from nemo_uecr.core.record import ScoredBatch
from tests.core.batches import SETTINGS, computed, mixed_responses, padded, random_responses
from tests.core.reference import Response, Settings

OURS = replace(SETTINGS, horizon=32.0, margin=0.2, memory=0.8, state={})


def kappa(responses: list[Response], settings: Settings = OURS) -> float:
    return computed("uecr_trust", padded(responses), settings).state["kappa"]


def objecting(response: Response, nats: float) -> Response:
    return replace(response, teacher=tuple(old - nats for old in response.old))


@pytest.mark.parametrize("nats", [0.0, 0.1, 3.0, 30.0])
def test_a_teacher_that_treats_right_and_wrong_alike_is_not_followed(nats: float) -> None:
    """A copy, one that drifts, one that objects to all; whatever the lengths."""
    assert kappa([objecting(r, nats) for r in mixed_responses(3, (4, 3, 2), 12)]) == pytest.approx(0, abs=1e-14)


def test_the_verdict_decides_and_one_group_is_half_of_the_evidence() -> None:
    for sizes, most in (((2,), 1 / 2), ((2,) * 9, 9 / 10), ((8,) * 3, 3 / 4)):
        responses = mixed_responses(5, sizes)
        assert kappa([objecting(r, 3.0 * (1 - r.task)) for r in responses]) == pytest.approx(most, abs=1e-9)
        assert kappa([objecting(r, 3.0 * r.task) for r in responses]) == 0
        assert kappa([replace(r, task=1.0) for r in responses]) == 0


def test_verdicts_that_know_nothing_give_little() -> None:
    found = []
    for seed in range(100):
        rng, responses = random.Random(seed), random_responses(seed, (8,) * 8, 40)
        found.append(kappa([objecting(r, rng.choice((0.0, 0.05, 2.0))) for r in responses]))
    assert fmean(found) < 0.06


def test_padding_rows_are_no_evidence() -> None:
    responses = [objecting(r, 3.0 * (1 - r.task)) for r in mixed_responses(5, (4, 4))]
    batch, given = padded(responses), vars(OURS) | {"state": {"lead": 1.0, "groups": 2.0}}
    more = ScoredBatch(**{
        name: torch.cat((value, torch.zeros_like(value[:2])))
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor) and name in ScoredBatch.__dataclass_fields__
    })  # fmt: skip
    found = [nemo_uecr.method_advantage("uecr_trust", each, unusable="zero", **given) for each in (batch, more)]
    assert found[0].state == found[1].state
    nobody = replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
    assert nemo_uecr.method_advantage("uecr_trust", nobody, unusable="zero", **given).state == given["state"]
