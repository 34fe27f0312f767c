"""The numbers of a step against hand values."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.telemetry import statistics

T, F = True, False


@pytest.fixture
def batch() -> ScoredBatch:
    """Three groups of two: mixed, all wrong, all right. NaN where no token was sampled."""
    nan = math.nan
    mask = torch.tensor([[T, T, F], [T, F, F], [T, T, T], [T, F, F], [T, F, F], [T, F, F]])
    old = torch.tensor([[-1.0, -2, nan], [-1, nan, nan], [-1, -1, -1], [-1, nan, nan], [-1, nan, nan], [-1, nan, nan]])
    gap = torch.tensor([[1.0, -1, nan], [6, nan, nan], [0, 0, 0], [0, nan, nan], [0, nan, nan], [0, nan, nan]])
    return ScoredBatch(
        task_reward_B=torch.tensor([1.0, 0, 0, 0, 1, 1]),
        group_B=torch.tensor([4, 4, 9, 9, 1, 1]),
        mask_BT=mask,
        old_logp_BT=old,
        teacher_logp_BT=old + gap,
        teacher_entropy_BT=torch.where(mask, 0.5, nan),
    )


@pytest.fixture
def advantages() -> Advantages:
    advantage = torch.tensor([[2.0, 1, 0], [-1, 0, 0], [0.5, -0.5, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    return Advantages(
        advantage_BT=advantage,
        advantage_unified_B=torch.tensor([1.0, -1, 0, 0, 0, 0]),
        advantage_task_B=torch.tensor([0.5, -0.5, 0, 0, 0, 0]),
        advantage_teacher_B=torch.tensor([0.25, -0.25, 0, 0, 0, 0]),
        teacher_reward_B=torch.tensor([0.0, 5, 0, 0, 0, 0]),
        unified_std_B=torch.tensor([1.0, 1, 1e-5, 1e-5, 0.5, 0.5]),
    )


def test_groups(batch: ScoredBatch, advantages: Advantages) -> None:
    assert statistics.group_metrics(batch, advantages, noise=1e-3) == pytest.approx(
        {
            "group/count": 3.0,
            "group/degenerate_share": 2 / 3,
            "group/all_right_share": 1 / 3,
            "group/all_wrong_share": 1 / 3,
            "group/mixed_share": 1 / 3,
            "group/teacher_only_share": 0.0,
            "group/below_noise_share": 1 / 3,
        }
    )


def test_groups_that_only_the_teacher_tells_apart(batch: ScoredBatch, advantages: Advantages) -> None:
    """Ranges of R^T: 5 in the mixed group, 0.06 in the wrong one, 0.04 in the right one; only 0.06 is degenerate
    and above 0.05."""
    teacher_B = torch.tensor([0.0, 5, 0.06, 0, 0.01, 0.05])
    found = statistics.group_metrics(batch, replace(advantages, teacher_reward_B=teacher_B), noise=1e-3)
    assert found["group/teacher_only_share"] == pytest.approx(1 / 3)
    without = statistics.group_metrics(batch, replace(advantages, teacher_reward_B=None), noise=1e-3)
    assert "group/teacher_only_share" not in without


def test_sign_flips_are_those_of_mixed_groups(batch: ScoredBatch, advantages: Advantages) -> None:
    """One of the two mixed responses is pushed against the verifier; degenerate groups do not count."""
    flipped = replace(advantages, advantage_unified_B=torch.tensor([-0.1, -1, 3, 3, 3, 3]))
    found = statistics.advantage_metrics(batch, flipped, Settings(alpha=1.0))
    assert found["advantage/sign_flip_share"] == 0.5
    assert statistics.advantage_metrics(batch, advantages, Settings(alpha=1.0))["advantage/sign_flip_share"] == 0.0
    tied = replace(batch, task_reward_B=torch.ones(6))
    assert "advantage/sign_flip_share" not in statistics.advantage_metrics(tied, advantages, Settings(alpha=1.0))
    no_teacher = Advantages(advantages.advantage_BT, advantage_task_B=advantages.advantage_task_B)
    assert "advantage/sign_flip_share" not in statistics.advantage_metrics(batch, no_teacher, Settings())


def test_ragged_groups_count_once_each() -> None:
    """A group of four mixed responses and one of two wrong: half and half, although 4 of 6 responses are mixed."""
    batch = ScoredBatch(
        task_reward_B=torch.tensor([1.0, 0, 0, 0, 0, 0]),
        group_B=torch.tensor([0, 0, 1, 0, 1, 0]),
        mask_BT=torch.ones(6, 1, dtype=torch.bool),
        old_logp_BT=torch.zeros(6, 1),
    )
    found = statistics.group_metrics(batch, Advantages(torch.zeros(6, 1)), noise=1e-3)
    assert (found["group/mixed_share"], found["group/all_wrong_share"]) == pytest.approx((0.5, 0.5))
    assert "group/below_noise_share" not in found


def test_rewards(batch: ScoredBatch, advantages: Advantages) -> None:
    found = statistics.reward_metrics(batch, advantages, Settings(alpha=0.5))
    assert found["reward/task_mean"] == pytest.approx(0.5)
    assert found["reward/task_std"] == pytest.approx(0.5)
    assert found["reward/teacher_mean"] == pytest.approx(5 / 6)
    # R^U = 1, 2.5, 0, 0, 1, 1
    assert found["reward/unified_mean"] == pytest.approx(5.5 / 6)
    no_teacher = statistics.reward_metrics(batch, Advantages(advantages.advantage_BT), Settings(alpha=0.5))
    assert sorted(no_teacher) == ["reward/task_mean", "reward/task_std"]


def test_advantages(batch: ScoredBatch, advantages: Advantages) -> None:
    found = statistics.advantage_metrics(batch, advantages, Settings(alpha=2.0))
    # nine tokens: 2, 1, -1, 0.5, -0.5 and four zeros; the unsampled zeros do not count
    assert found["advantage/mean"] == pytest.approx(2 / 9)
    assert found["advantage/abs_mean"] == pytest.approx(5 / 9)
    assert (found["advantage/min"], found["advantage/max"]) == (-1.0, 2.0)
    # the six tokens of the two degenerate groups: 0.5, -0.5, 0, 0, 0, 0
    assert found["advantage/degenerate_abs_mean"] == pytest.approx(1 / 6)
    assert found["advantage/degenerate_abs_max"] == 0.5
    assert found["advantage/unified_abs_mean"] == pytest.approx(2 / 6)
    assert found["advantage/teacher_abs_mean"] == pytest.approx(2.0 * 0.5 / 6)


def test_teacher(batch: ScoredBatch) -> None:
    found = statistics.teacher_metrics(batch)
    # gaps 1, -1, 6 and six zeros; only 6 lies outside -5..5
    assert found["teacher/gap_mean"] == pytest.approx(6 / 9)
    assert found["teacher/gap_abs_mean"] == pytest.approx(8 / 9)
    assert found["teacher/gap_clip_share"] == pytest.approx(1 / 9)
    assert (found["teacher/gap_min"], found["teacher/gap_max"]) == (-1.0, 6.0)
    assert found["teacher/entropy_mean"] == 0.5
    assert found["teacher/entropy_std"] == 0.0


def test_ratio() -> None:
    ratio = torch.tensor([1.0, 0.5, 2.0, 1.2])
    found = statistics.ratio_metrics(ratio, torch.tensor([1.0, 0.99]), clip_low=0.2, clip_high=0.3)
    assert found["policy/clip_low_share"] == 0.25  # 0.5 < 0.8
    assert found["policy/clip_high_share"] == 0.25  # 2.0 > 1.3, 1.2 is not
    assert found["policy/first_ratio_error"] == pytest.approx(0.01)
    expected = sum(r - 1 - math.log(r) for r in (1.0, 0.5, 2.0, 1.2)) / 4
    assert found["policy/approx_kl"] == pytest.approx(expected, abs=1e-7)


def test_lengths(batch: ScoredBatch) -> None:
    truncated = torch.tensor([T, F, F, F, F, F])
    assert statistics.length_metrics(batch.mask_BT, truncated) == pytest.approx(
        {
            "response/length_mean": 1.5,
            "response/length_min": 1,
            "response/length_max": 3,
            "response/truncated_share": 1 / 6,
        }
    )
