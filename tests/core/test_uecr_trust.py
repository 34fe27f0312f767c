"""Teachers, verdicts, lengths, groups and runs that were made to fool the trust of `uecr_trust`."""

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


def honest(response: Response) -> Response:
    """A teacher that objects to what the verdict says is wrong."""
    return objecting(response, 3.0 * (1 - response.task))


def over_steps(steps: list[list[Response]], settings: Settings = OURS) -> list[float]:
    """Kappa after each step, the state carried."""
    found, state = [], dict[str, float]()
    for responses in steps:
        state = dict(computed("uecr_trust", padded(responses), replace(settings, state=state)).state)
        found.append(state["kappa"])
    return found


def flipped(responses: list[Response], share: float, seed: int = 0) -> list[Response]:
    """Some verdicts the other way round; the teacher is as it was."""
    rng = random.Random(seed)
    return [replace(r, task=1 - r.task if rng.random() < share else r.task) for r in responses]


def test_flipped_verdicts_lower_trust_and_all_of_them_end_it_at_grpo() -> None:
    right = [honest(r) for r in mixed_responses(7, (8,) * 24)]
    found = [kappa(flipped(right, share)) for share in (0.0, 0.1, 0.3, 1.0)]
    assert found[0] > found[1] > found[2] > found[3] == 0
    assert found[1] > 0.6  # a tenth: the teacher is still followed
    wrong = padded(flipped(right, 1.0))
    assert torch.equal(computed("uecr_trust", wrong, OURS).advantage_BT, computed("grpo", wrong, OURS).advantage_BT)


def test_all_right_batches_are_no_evidence_and_trust_fades() -> None:
    """Groups fade by 0.8 a step against the prior of one group: trust of 16 groups halves after twelve such steps."""
    right = [honest(r) for r in mixed_responses(8, (8,) * 16)]
    nothing = [replace(r, task=1.0) for r in right]
    found = over_steps([right, *[nothing] * 20])
    assert found == pytest.approx([16 * 0.8**n / (16 * 0.8**n + 1) for n in range(21)], abs=1e-3)
    assert found == sorted(found, reverse=True)
    batch = padded(nothing)
    advantages = computed("uecr_trust", batch, replace(OURS, state={"lead": 1.0, "groups": 9.0}))
    # Equal verdicts have no advantage of GRPO's: all of it is kappa times UECR's.
    uecr = computed("uecr", batch, OURS)
    torch.testing.assert_close(advantages.advantage_BT, advantages.state["kappa"] * uecr.advantage_BT)


def test_a_teacher_that_turns_wrong_is_dropped_at_the_third_step() -> None:
    """One that turns against the verdicts takes back its lead; one that turns useless fades by 0.8 a step."""
    right = [honest(r) for r in mixed_responses(9, (8,) * 8)]
    against = [objecting(r, 3.0 * r.task) for r in right]
    useless = [objecting(r, 3.0) for r in right]
    lead = groups = 8 * (1 - 0.8**10) / 0.2  # after ten steps of eight groups, each of lead 1
    expected = [lead / (groups + 1)]
    for _ in range(3):
        lead, groups = 0.8 * lead - 8, 0.8 * groups + 8
        expected.append(max(0.0, lead / (groups + 1)))
    assert over_steps([*[right] * 10, *[against] * 3])[-4:] == pytest.approx(expected, abs=1e-3)
    assert expected[0] > 0.97
    assert expected[-1] == 0
    assert over_steps([*[right] * 10, *[useless] * 12])[-1] == pytest.approx(expected[0] * 0.8**12, abs=0.01)


def test_groups_of_two_tell_right_from_wrong() -> None:
    pairs = mixed_responses(10, (2,) * 32)
    assert kappa([honest(r) for r in pairs]) == pytest.approx(32 / 33, abs=1e-9)
    assert kappa([objecting(r, 3.0 * r.task) for r in pairs]) == 0
