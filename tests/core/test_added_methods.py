"""RLSD and G-OPD: values by hand, what they reduce to, and what they promise."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from hypothesis import given
from torch import Tensor

from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import ScoredBatch, Settings
from tests.core.batches import padded, ragged, same_bits, valid
from tests.core.reference import Response

PLAIN = Settings(std_floor=0.0, sample_std=False)
LOG = math.log


def with_parameters(**parameters: float) -> Settings:
    return replace(PLAIN, parameters=parameters)


def two_responses(delta: list[float], initial_shift: list[float]) -> ScoredBatch:
    """A right and a wrong answer with the same tokens: A^GRPO is +1 and -1 up to eps (std 1/2)."""
    old = torch.full((2, len(delta)), -2.0, dtype=torch.float64)
    return ScoredBatch(
        task_reward_B=torch.tensor([1.0, 0.0], dtype=torch.float64),
        group_B=torch.tensor([0, 0]),
        mask_BT=torch.ones(2, len(delta), dtype=torch.bool),
        old_logp_BT=old,
        teacher_logp_BT=old + torch.tensor(delta, dtype=torch.float64),
        initial_logp_BT=old - torch.tensor(initial_shift, dtype=torch.float64),
    )


def advantage(name: str, batch: ScoredBatch, settings: Settings) -> Tensor:
    return METHODS[name].compute(batch, settings).advantage_BT


def test_rlsd_by_hand() -> None:
    # mix 1/2, bound 0.2. Right answer: ratios 1.1, clip(e^5) = 1.2, clip(e^-5) = 0.8, so w = 1.05, 1.1, 0.9.
    # Wrong answer: the ratio is inverted: clip(1/1.1) = 0.90909, clip(e^-5) = 0.8, 1.2, so w = 0.954545, 0.9, 1.1.
    batch = two_responses([LOG(1.1), 5.0, -5.0], [0.0, 0.0, 0.0])
    got = METHODS["rlsd"].compute(batch, with_parameters(mix=0.5, bound=0.2), detail=True)
    scale = 0.5 / (0.5 + 1e-6)
    weights = torch.tensor([[1.05, 1.1, 0.9], [0.5 + 0.5 / 1.1, 0.9, 1.1]], dtype=torch.float64)
    assert got.weight_BT is not None
    torch.testing.assert_close(got.weight_BT, weights, atol=1e-12, rtol=0)
    expected = weights * torch.tensor([[scale], [-scale]], dtype=torch.float64)
    torch.testing.assert_close(got.advantage_BT, expected, atol=1e-12, rtol=0)


def test_g_opd_by_hand() -> None:
    # log pi_T - log pi_0 = delta + shift. With 1.25: 0.4 + 0.25 * (0.4 + 0.2) = 0.55; -1 + 0.25 * (-1 + 0.6) = -1.1;
    # 4.5 + 0.25 * 5.5 = 5.875, clipped to 5. The verifier has no say: both responses get the same.
    batch = two_responses([0.4, -1.0, 4.5], [0.2, 0.6, 1.0])
    got = advantage("g_opd", batch, with_parameters(extrapolation=1.25))
    torch.testing.assert_close(got, torch.tensor([[0.55, -1.1, 5.0]] * 2, dtype=torch.float64), atol=1e-12, rtol=0)


@given(responses=ragged())
def test_rlsd_without_mix_or_bound_is_grpo(responses: list[Response]) -> None:
    batch = padded(responses)
    grpo = advantage("grpo", batch, PLAIN)
    assert torch.equal(advantage("rlsd", batch, with_parameters(mix=0.0, bound=0.2)), grpo)
    assert torch.equal(advantage("rlsd", batch, with_parameters(mix=1.0, bound=0.0)), grpo)


@given(responses=ragged())
def test_g_opd_of_strength_one_is_pg_opd_bit_for_bit(responses: list[Response]) -> None:
    batch = padded(responses, torch.float32)
    plain = valid(batch, advantage("pg_opd", batch, PLAIN))
    assert same_bits(valid(batch, advantage("g_opd", batch, with_parameters(extrapolation=1.0))), plain)
    # A student that has not moved: the implicit reward is the gap itself, and the strength multiplies it.
    still = replace(batch, initial_logp_BT=batch.old_logp_BT)
    doubled = valid(batch, advantage("g_opd", still, with_parameters(extrapolation=2.0)))
    gap_N = valid(batch, batch.teacher_logp_BT) - valid(batch, batch.old_logp_BT)
    assert torch.equal(doubled, (2 * gap_N).clamp(-5, 5))


@given(responses=ragged())
def test_rlsd_moves_sizes_and_no_sign(responses: list[Response]) -> None:
    batch = padded(responses)
    got = METHODS["rlsd"].compute(batch, with_parameters(mix=0.5, bound=0.2), detail=True)
    grpo = valid(batch, advantage("grpo", batch, PLAIN))
    assert torch.equal(valid(batch, got.advantage_BT).sign(), grpo.sign())
    weight_N = valid(batch, got.weight_BT)
    assert bool(((weight_N - 1).abs() <= 0.5 * 0.2 + 1e-12).all())
