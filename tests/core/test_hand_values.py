"""Values worked out by hand; the arithmetic stands beside each."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nemo_uecr.core.agreement import TokenSample, agreement
from nemo_uecr.core.record import ScoredBatch
from tests.core.batches import computed
from tests.core.reference import Settings

PLAIN = Settings(alpha=1.0, rho=0.5, tau_delta=1.0, tau_entropy=1.0)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def two_responses(delta: list[float], entropy: list[float], task: tuple[float, float] = (1.0, 0.0)) -> ScoredBatch:
    """A group of a response with these gaps and one whose teacher agrees exactly (R^T = 0)."""
    width = len(delta)
    return ScoredBatch(
        task_reward_B=f64(*task),
        group_B=torch.tensor([4, 4]),
        mask_BT=torch.ones(2, width, dtype=torch.bool),
        old_logp_BT=torch.full((2, width), -20.0, dtype=torch.float64),
        teacher_logp_BT=torch.stack((f64(*delta) - 20.0, torch.full((width,), -20.0, dtype=torch.float64))),
        teacher_entropy_BT=torch.stack((f64(*entropy), torch.zeros(width, dtype=torch.float64))),
    )


@pytest.mark.parametrize(
    ("sample", "floor", "sigma", "divisor"),
    [
        # Rewards 1,0,0,0: mean 1/4, deviations 3/4 and -1/4, variance (9/16 + 3/16)/4 = 3/16, sigma = sqrt(3)/4.
        (False, 0.0, math.sqrt(3.0) / 4.0, math.sqrt(3.0) / 4.0 + 1e-6),
        # Over G - 1 = 3: variance (9/16 + 3/16)/3 = 1/4, sigma = 1/2.
        (True, 0.0, 0.5, 0.500001),
        # A floor of 2 wins, one of 0.3 does not; the reported sigma is the one before it.
        (True, 2.0, 0.5, 2.000001),
        (True, 0.3, 0.5, 0.500001),
    ],
)
def test_grpo_of_one_right_in_four(sample: bool, floor: float, sigma: float, divisor: float) -> None:
    one = torch.ones(4, 1, dtype=torch.float64)
    batch = ScoredBatch(f64(1, 0, 0, 0), torch.tensor([9, 9, 9, 9]), one.bool(), -one)
    got = computed("grpo", batch, replace(PLAIN, sample_std=sample, std_floor=floor))
    torch.testing.assert_close(got.advantage_task_B, f64(0.75, -0.25, -0.25, -0.25) / divisor, rtol=1e-15, atol=0)
    torch.testing.assert_close(got.unified_std_B, f64(*(sigma,) * 4), rtol=1e-15, atol=0)


def test_puu_decomposition() -> None:
    # R^T = mean(1, -0.5, clip 9 -> 5) = 5.5/3 = 11/6 and 0; alpha = 2: R^U = 1 + 11/3 = 14/3 and 0.
    # mean 7/3, deviations +-7/3, sigma_U = 7/3. Centred task +-1/2, centred teacher +-11/12.
    batch = two_responses([1.0, -0.5, 9.0], [0.0, 0.0, 0.0])
    got = computed("puu", batch, replace(PLAIN, alpha=2.0))
    below = 7.0 / 3.0 + 1e-6
    expected = {
        "teacher_reward": f64(11 / 6, 0),
        "advantage_unified": f64(7 / 3, -7 / 3) / below,
        "advantage_task": f64(0.5, -0.5) / below,
        "advantage_teacher": f64(11 / 12, -11 / 12) / below,
        "unified_std": f64(7 / 3, 7 / 3),
    }
    named = got.named_tensors()
    for key, value in expected.items():
        torch.testing.assert_close(named[key], value, rtol=1e-14, atol=0, msg=key)
    torch.testing.assert_close(named["advantage"][0], f64(*(7 / 3,) * 3) / below, rtol=1e-14, atol=0)


# Three tokens with tau_delta = 1: d = tanh(delta / 2) for delta = ln 3, -ln 3, 0 is
# (e^delta - 1)/(e^delta + 1) = (3 - 1)/(3 + 1) = 1/2, -1/2, 0. Entropies 0, ln 2, ln 4: c = 1, 1/2, 1/4.
LN3 = math.log(3.0)
DELTA = [LN3, -LN3, 0.0]
ENTROPY = [0.0, math.log(2.0), math.log(4.0)]


# R^T = 0 for both responses (LN3 - LN3 + 0 = 0), so R^U = R^task: A^U = A^task|U = +-0.5/(0.5 + eps).
UP = 0.5 / 0.500001


@pytest.mark.parametrize("task", [(1.0, 0.0), (0.0, 1.0)])
def test_ecr_on_three_tokens(task: tuple[float, float]) -> None:
    # s = +1: mu = (1 * 1/2 - 1/2 * 1/2 + 0) / (1 + 1/2 + 1/4) = (1/4)/(7/4) = 1/7.
    # q = 1/2 * (1 * (1/2 - 1/7), 1/2 * (-1/2 - 1/7), 1/4 * (0 - 1/7)) = (5/28, -9/56, -1/56); sum 10-9-1 = 0.
    # s = -1 turns every direction round, hence mu and q: q = (-5/28, 9/56, 1/56).
    s = 1.0 if task[0] > 0 else -1.0
    got = computed("uecr", two_responses(DELTA, ENTROPY, task), PLAIN)
    q = s * f64(5 / 28, -9 / 56, -1 / 56)
    torch.testing.assert_close(got.residual_BT[0], q, rtol=0, atol=1e-15)
    torch.testing.assert_close(got.weight_BT[0], 1.0 + 0.5 * q, rtol=0, atol=1e-15)
    torch.testing.assert_close(got.centre_B[0], torch.tensor(s / 7, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(got.advantage_BT[0], s * UP * (1.0 + 0.5 * q), rtol=0, atol=1e-14)
    torch.testing.assert_close(got.direction_BT[0], s * f64(0.5, -0.5, 0.0), rtol=0, atol=1e-15)
    torch.testing.assert_close(got.confidence_BT[0], f64(1.0, 0.5, 0.25), rtol=0, atol=1e-15)


def test_agreement_on_the_next_token() -> None:
    """Same first id and 2 of 4 in common; another order of the same ids; nothing in common."""
    student_NK = torch.tensor([[5, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]])
    teacher_NK = torch.tensor([[5, 3, 7, 8], [2, 1, 4, 3], [5, 6, 7, 8]])
    top1_N, overlap_N = agreement(student_NK, teacher_NK)
    assert top1_N.tolist() == [1, 0, 0]
    assert overlap_N.tolist() == [0.5, 1, 0]


def test_the_compared_tokens_are_sampled_ones_and_a_function_of_the_seed() -> None:
    mask_BT = torch.arange(40) < torch.arange(0, 40, 2).unsqueeze(1)  # 380 tokens
    sample = TokenSample.of(mask_BT, columns=50, seed=3)
    assert int(sample.at_BT.sum()) == 256
    assert not bool((sample.at_BT & ~mask_BT).any())
    assert sample.number_BT[sample.at_BT].tolist() == list(range(256))
    assert torch.equal(sample.number_BT, TokenSample.of(mask_BT, columns=50, seed=3).number_BT)
    assert not torch.equal(sample.number_BT, TokenSample.of(mask_BT, columns=50, seed=4).number_BT)
    assert torch.equal(TokenSample.of(mask_BT[:10], columns=50, seed=3).at_BT, mask_BT[:10])  # 90 tokens: all
