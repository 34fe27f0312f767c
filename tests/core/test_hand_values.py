"""Values worked out by hand; the arithmetic stands beside each."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nemo_uecr.core.agreement import TokenSample, agreement
from nemo_uecr.core.record import Groups, ScoredBatch
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


def advantage(name: str, batch: ScoredBatch, settings: Settings = PLAIN) -> Tensor:
    return computed(name, batch, settings).advantage_BT


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


def test_spread_is_the_distance_of_a_groups_ends() -> None:
    # Group 7 holds 3, -2, 0.5: 3 - (-2) = 5. Group 2 holds -1, -4: -1 - (-4) = 3.
    groups = Groups.of(torch.tensor([7, 2, 7, 2, 7]))
    assert groups.spread(f64(3, -1, -2, -4, 0.5)).tolist() == [5, 3, 5, 3, 5]


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


def test_separate_norm_uses_two_denominators() -> None:
    # Task: +-0.5 / (0.5 + eps). Teacher rewards 0.5 and 0: +-0.25 / (0.25 + eps). alpha = 2.
    batch = two_responses([0.5, 0.5], [0.0, 0.0])
    got = advantage("separate_norm", batch, replace(PLAIN, alpha=2.0))
    value = 0.5 / 0.500001 + 2.0 * 0.25 / 0.250001
    torch.testing.assert_close(got, torch.stack((f64(value, value), f64(-value, -value))), rtol=1e-14, atol=0)


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


@pytest.mark.parametrize(
    ("name", "q"),
    [
        # c = 1: mu = (1/2 - 1/2 + 0)/3 = 0; q = (1/4, -1/4, 0).
        ("ecr_no_entropy", (1 / 4, -1 / 4, 0.0)),
        # mu = 0: q = 1/2 c d = (1/4, -1/8, 0), which sums to 1/8, not 0.
        ("ecr_no_projection", (1 / 4, -1 / 8, 0.0)),
        # mean c = (1 + 1/2 + 1/4)/3 = 7/12: q = 1/2 (5/12, -1/12, -4/12) = (5/24, -1/24, -1/6).
        ("ecr_no_gap", (5 / 24, -1 / 24, -1 / 6)),
    ],
)
def test_token_credit_ablations_on_three_tokens(name: str, q: tuple[float, ...]) -> None:
    got = computed(name, two_responses(DELTA, ENTROPY), PLAIN)
    torch.testing.assert_close(got.advantage_BT[0], UP * (1.0 + 0.5 * f64(*q)), rtol=0, atol=1e-14)
    if name == "ecr_no_gap":
        assert got.centre_B[0].item() == pytest.approx(7 / 12, abs=1e-15)


def test_full_advantage_and_alpha_zero() -> None:
    # delta = (2 + ln3, 2 - ln3): R^T = 2, R^U = 3 and 0, sigma_U = 3/2: A^U = 1.5/1.500001, A^task|U = 0.5/1.500001.
    # c = 1: d1 = tanh(1 + ln3/2), d2 = tanh(1 - ln3/2), mu their mean, q = (d1 - d2)/4 and its negative.
    batch = two_responses([2.0 + LN3, 2.0 - LN3], [0.0, 0.0])
    q = (math.tanh(1 + LN3 / 2) - math.tanh(1 - LN3 / 2)) / 4.0 * f64(1, -1)
    unified, task = 1.5 / 1.500001, 0.5 / 1.500001
    torch.testing.assert_close(advantage("uecr", batch)[0], unified + 0.5 * task * q, rtol=0, atol=1e-14)
    torch.testing.assert_close(advantage("ecr_full_advantage", batch)[0], unified * (1 + 0.5 * q), rtol=0, atol=1e-14)
    # alpha = 0: R^U = R^task, A = 0.5/0.500001 (1 + q/2).
    torch.testing.assert_close(advantage("ecr_alpha_zero", batch)[0], UP * (1 + 0.5 * q), rtol=0, atol=1e-14)


def test_gap_scale_and_entropy_scale() -> None:
    # tau_delta = 2: d = tanh(delta/4), delta = 2 ln3 gives tanh(ln3 / 2) = 1/2. tau_entropy = 2:
    # H = 2 ln 2 gives c = 1/2.
    batch = two_responses([2 * LN3, -2 * LN3, 0.0], [0.0, 2 * math.log(2.0), 2 * math.log(4.0)])
    got = computed("uecr", batch, replace(PLAIN, tau_delta=2.0, tau_entropy=2.0))
    torch.testing.assert_close(got.residual_BT[0], f64(5 / 28, -9 / 56, -1 / 56), rtol=0, atol=1e-15)


def test_the_clip_is_for_the_teacher_reward_only() -> None:
    # A gap of 20 enters R^T as 5, and the direction as itself: with tau_delta = 20, d = tanh(1/2), not tanh(1/8).
    got = computed("ecr_no_projection", two_responses([20.0, 0.0], [0.0, 0.0]), replace(PLAIN, tau_delta=20.0))
    assert got.teacher_reward_B[0] == 2.5
    torch.testing.assert_close(got.direction_BT[0], f64(math.tanh(0.5), 0.0), rtol=0, atol=1e-15)


def test_pg_opd_and_naive_hybrid() -> None:
    batch = two_responses([6.0, -7.5, 0.25], [0.0, 0.0, 0.0])
    torch.testing.assert_close(advantage("pg_opd", batch)[0], f64(5.0, -5.0, 0.25), rtol=0, atol=0)
    both = computed("grpo_plus_opd", batch, PLAIN)
    torch.testing.assert_close(both.advantage_BT[0], f64(*(UP,) * 3), rtol=1e-15, atol=0)
    torch.testing.assert_close(both.advantage_opd_BT[0], f64(5.0, -5.0, 0.25), rtol=0, atol=0)


def test_distilled_rl() -> None:
    # Ratios 2, 1/2, e^4 -> 3 (clipped first). Logs ln2, -ln2, ln3: geometric mean 3^(1/3).
    # Weights 2/3^(1/3), 0.5/3^(1/3), 3/3^(1/3); their product is 2 * 0.5 * 3 / 3 = 1.
    batch = two_responses([math.log(2.0), -math.log(2.0), 4.0], [0.0, 0.0, 0.0])
    g = 3.0 ** (1.0 / 3.0)
    torch.testing.assert_close(advantage("distilled_rl", batch)[0], UP * f64(2 / g, 0.5 / g, 3 / g), rtol=1e-14, atol=0)
    # The lower bound is 1/3: ratios e^-4 -> 1/3 and 1, geometric mean 3^(-1/2).
    low = advantage("distilled_rl", two_responses([-4.0, 0.0], [0.0, 0.0]))[0]
    torch.testing.assert_close(low, UP * f64(1 / math.sqrt(3.0), math.sqrt(3.0)), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("step", "kappa", "rho"),
    [
        (0, 1.0, 1.0),  # p = 0
        (40, 0.55, 1.5),  # p = 1/2: 1 - 0.45, 1 + 0.5
        (80, 0.1, 2.0),  # p = 1
        (200, 0.1, 2.0),  # p stays 1
    ],
)
def test_atod_schedule(step: int, kappa: float, rho: float) -> None:
    # One turn: w = 1 - (1 - 1/2)(1 - 1/2) = 0.75. The gap is not clipped (8 > 5).
    got = advantage("atod", two_responses([8.0, -1.0], [0.0, 0.0]), replace(PLAIN, step=step))
    torch.testing.assert_close(got[0], kappa * 0.75 * f64(8.0, -1.0) + rho * UP, rtol=1e-14, atol=0)


def test_atod_with_three_turns() -> None:
    # Turn labels 7, 7, 2, 5 (arbitrary). |delta|: turn 7: (1 + 3)/2 = 2; turn 2: 0; turn 5: 1  -> d = 1, 0, 1/2.
    # -log pi_old: turn 7: (2 + 4)/2 = 3; turn 2: 5; turn 5: 1                                -> h = 1/2, 1, 0.
    # w = 1 - (1-d)(1-h): 1 - 0 = 1; 1 - 1*0 = 1; 1 - 1/2 * 1 = 1/2.
    old = torch.stack((f64(-2, -4, -5, -1), f64(-1, -1, -1, -1)))
    delta = torch.stack((f64(1, -3, 0, 1), f64(0, 0, 0, 0)))
    batch = ScoredBatch(
        task_reward_B=f64(1, 0),
        group_B=torch.tensor([0, 0]),
        mask_BT=torch.ones(2, 4, dtype=torch.bool),
        old_logp_BT=old,
        teacher_logp_BT=old + delta,
        segments_BT=torch.tensor([[7, 7, 2, 5], [1, 1, 1, 1]]),
    )
    got = computed("atod", batch, PLAIN)
    torch.testing.assert_close(
        got.weight_BT, torch.stack((f64(1, 1, 1, 0.5), f64(0.75, 0.75, 0.75, 0.75))), rtol=0, atol=1e-15
    )
    torch.testing.assert_close(got.advantage_BT[0], UP + f64(1, -3, 0, 0.5), rtol=0, atol=1e-14)


def test_rlsd() -> None:
    # mix 1/2, bound 0.2. Right answer: ratios 1.1, clip(e^5) = 1.2, clip(e^-5) = 0.8, so w = 1.05, 1.1, 0.9.
    # Wrong answer, with the same gaps: the ratio is inverted: 1/1.1 = 0.90909, 0.8, 1.2, so w = 0.954545, 0.9, 1.1.
    batch = two_responses([math.log(1.1), 5.0, -5.0], [0.0, 0.0, 0.0])
    teacher_BT = batch.teacher_logp_BT[:1].expand(2, -1)
    settings = replace(PLAIN, mix=0.5, bound=0.2)
    got = computed("rlsd", replace(batch, teacher_logp_BT=teacher_BT), settings)
    weight = torch.stack((f64(1.05, 1.1, 0.9), f64(0.5 + 0.5 / 1.1, 0.9, 1.1)))
    torch.testing.assert_close(got.weight_BT, weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(got.advantage_BT, weight * f64(1, -1)[:, None] * UP, rtol=0, atol=1e-12)


def test_g_opd() -> None:
    # log pi_T - log pi_0 = delta + shift. With 1.25: 0.4 + 0.25 * (0.4 + 0.2) = 0.55; -1 + 0.25 * (-1 + 0.6) = -1.1;
    # 4.5 + 0.25 * 5.5 = 5.875, clipped to 5. The verifier has no say.
    batch = two_responses([0.4, -1.0, 4.5], [0.0, 0.0, 0.0])
    batch = replace(batch, initial_logp_BT=batch.old_logp_BT - f64(0.2, 0.6, 1.0))
    got = advantage("g_opd", batch, replace(PLAIN, extrapolation=1.25))
    torch.testing.assert_close(got[0], f64(0.55, -1.1, 5.0), rtol=0, atol=1e-12)


def test_iw_opd_trusts_the_teacher_less_and_less() -> None:
    # sum |delta| = 4, of it 0, 1 and 2 before each token: weights 1 + 1/2 (1, 3/4, 1/2).
    settings = replace(PLAIN, amplification=0.5)
    got = advantage("iw_opd", two_responses([1.0, -1.0, 2.0], [0.0] * 3), settings)
    torch.testing.assert_close(got, torch.stack((f64(1.5, -1.375, 2.5), f64(0, 0, 0))), rtol=1e-15, atol=0)


def test_top_d_of_a_token_that_the_teacher_prefers() -> None:
    # r = log(1/2 * 3 + 1/2) = ln 2, then 0: R = (ln 2, 0) and (0, 0), mean ln 2 / 4, Std sqrt(3) / 4 ln 2.
    got = advantage("top_d", two_responses([LN3, 0.0], [0.0, 0.0]), replace(PLAIN, mix=0.5))
    below = math.sqrt(3) / 4 * math.log(2) + 1e-6
    expected = math.log(2) * torch.stack((f64(0.75, -0.25), f64(-0.25, -0.25))) / below
    torch.testing.assert_close(got, expected, rtol=1e-14, atol=0)


def test_opsa_pushes_the_least_likely_tokens_down() -> None:
    # Two of the five tokens: -9 and -7, whose entropies are 3 and 1.
    batch = ScoredBatch(
        task_reward_B=f64(1, 0),
        group_B=torch.tensor([0, 0]),
        mask_BT=torch.tensor([[True, True, True], [True, True, False]]),
        old_logp_BT=torch.stack((f64(-1, -9, -2), f64(-7, -6, -99))),
        student_entropy_BT=torch.stack((f64(9, 3, 0), f64(1, 8, -99))),
    )
    settings = replace(PLAIN, share=0.4)
    for name, expected in (("opsa_control", [-0.5, -0.5]), ("opsa", [-1.0, -0.5])):
        got = computed(name, batch, settings)
        assert got.loss_mask_BT.tolist() == [[False, True, False], [True, False, False]]
        assert got.advantage_BT[got.loss_mask_BT].tolist() == expected


def test_saf_opd_warms_up_and_anneals() -> None:
    # delta = 2, -1, 1/2: keep = 1/2 leaves those at least as large as the median, 1. A^GRPO = +-UP.
    settings = replace(PLAIN, total_steps=25, keep=0.5, bound=0.1, warmup=10.0)
    batch = two_responses([2.0, -1.0, 0.5], [0.0] * 3)
    term = 0.1 * f64(math.tanh(2.0), math.tanh(-1.0), 0.0)
    # KL = -(2 - 1 + 1/2) / 6 = -1/4. A first KL of -0.25 never falls by a fifth; from one of 1 it has.
    for step, state, c, carried in (
        (0, {}, 0.1, {"first_kl": -0.25}),
        (4, {"first_kl": -0.25}, 0.5, {"first_kl": -0.25}),
        (4, {"first_kl": 1.0}, 0.5, {"first_kl": 1.0, "warmup_end": 5.0}),
        (5, {"first_kl": 1.0, "warmup_end": 5.0}, 0.5 * 19 / 20, {"first_kl": 1.0, "warmup_end": 5.0}),
        (9, {"first_kl": -0.25}, 1.0, {"first_kl": -0.25, "warmup_end": 10.0}),
        (24, {"first_kl": 1.0, "warmup_end": 5.0}, 0.0, {"first_kl": 1.0, "warmup_end": 5.0}),
    ):
        got = computed("saf_opd", batch, replace(settings, step=step, state=state))
        torch.testing.assert_close(got.advantage_BT[0], UP + c * term, rtol=1e-14, atol=0)
        assert got.state == carried


def test_trust_is_the_lead_of_what_the_teacher_keeps_of_right_responses() -> None:
    # In group 4 all but 1/4 nat of a gap counts: 3/4 and -3/4 of the right response; of the wrong ones -1 twice and
    # 7/4 twice. At horizon ln 2 that gives k = 1 against (1/2 + 1) / 2 = 3/4, a lead of 1/4.
    # Group 5 is all right. Beside 10 carried groups, of a lead of 5 in all, fading by 4/5: (4 + 1/4) / (8 + 1 + 1).
    batch = ScoredBatch(
        task_reward_B=f64(1, 0, 0, 1, 1),
        group_B=torch.tensor([4, 4, 4, 5, 5]),
        mask_BT=torch.ones(5, 2, dtype=torch.bool),
        old_logp_BT=torch.full((5, 2), -9.0, dtype=torch.float64),
        teacher_logp_BT=torch.stack((f64(-8, -10), f64(-10.25, -10.25), f64(-7, -7), f64(-1, -1), f64(-20, -9))),
        teacher_entropy_BT=torch.ones(5, 2, dtype=torch.float64),
    )
    for state, kappa in (({}, 0.125), ({"lead": 5.0, "groups": 10.0}, 0.425), ({"lead": -1.0, "groups": 10.0}, 0.0)):
        got = computed("uecr_trust", batch, replace(PLAIN, horizon=math.log(2), margin=0.25, memory=0.8, state=state))
        assert got.state["kappa"] == pytest.approx(kappa, abs=1e-14)
        expected = kappa * torch.stack((f64(1, -1), f64(-1.25, -1.25)))
        torch.testing.assert_close(got.advantage_opd_BT[:2], expected)


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
