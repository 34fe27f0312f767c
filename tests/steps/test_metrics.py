"""The numbers of a step against hand values and a plain loop."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import Advantages, Method, method_of
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.core.methods.uecr import Puu
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.steps import metrics
from nemo_uecr.telemetry.metric_table import METRICS, Metric, Step
from tests.core.batches import padded, random_responses

T, F = True, False


@pytest.fixture
def batch() -> ScoredBatch:
    """Three groups of two: mixed, all wrong, all right. NaN where no token was sampled."""
    nan = math.nan
    mask = torch.tensor([[T, T, F], [T, F, F], [T, T, T], [T, F, F], [T, F, F], [T, F, F]])
    old = torch.tensor([[-1.0, -2, nan], [-7, nan, nan], [-1, -1, -1], [-1, nan, nan], [-1, nan, nan], [-1, nan, nan]])
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


def step(batch: ScoredBatch, advantages: Advantages, method: Method) -> dict[str, float]:
    """All numbers of a step in which the first response was cut."""
    cut_B = torch.arange(batch.responses) == 0
    right_B = batch.task_reward_B > 0
    return metrics.method_metrics(batch, advantages, method, {"budget": 0.25}, correct_B=right_B, truncated_B=cut_B)


def test_a_mask_that_leaves_no_token_leaves_no_metric_of_tokens(batch: ScoredBatch, advantages: Advantages) -> None:
    nothing = replace(advantages, loss_mask_BT=torch.zeros_like(batch.mask_BT))
    found = step(batch, nothing, Puu(alpha=2.0))
    assert found["advantage/trained_share"] == 0.0
    assert not [name for name in found if name.startswith(("position/", "entropy_bin/")) or name == "advantage/mean"]


def test_by_hand(batch: ScoredBatch, advantages: Advantages) -> None:
    found = step(batch, advantages, Puu(alpha=2.0))
    expected = {
        "reward/task_mean": 0.5,
        "reward/task_std": 0.5,
        "reward/teacher_mean": 5 / 6,
        "reward/unified_mean": 13 / 6,  # R^U = 1, 10, 0, 0, 1, 1
        "group/count": 3.0,
        "group/degenerate_share": 2 / 3,
        "group/all_right_share": 1 / 3,
        "group/all_wrong_share": 1 / 3,
        "group/mixed_share": 1 / 3,
        "group/teacher_only_share": 0.0,
        "group/below_noise_share": 1 / 3,
        # nine tokens: 2, 1, -1, 0.5, -0.5 and four zeros; the unsampled zeros do not count
        "advantage/mean": 2 / 9,
        "advantage/abs_mean": 5 / 9,
        "advantage/min": -1.0,
        "advantage/max": 2.0,
        # the six tokens of the two degenerate groups: 0.5, -0.5, 0, 0, 0, 0
        "advantage/degenerate_abs_mean": 1 / 6,
        "advantage/degenerate_abs_max": 0.5,
        "advantage/unified_abs_mean": 2 / 6,
        "advantage/task_abs_mean": 1 / 6,
        "advantage/teacher_abs_mean": 2.0 * 0.5 / 6,
        "advantage/sign_flip_share": 0.0,
        # gaps 1, -1, 6 and six zeros
        "teacher/gap_mean": 6 / 9,
        "teacher/gap_abs_mean": 8 / 9,
        "teacher/gap_clip_share": 1 / 9,
        "teacher/gap_min": -1.0,
        "teacher/gap_max": 6.0,
        "teacher/entropy_mean": 0.5,
        "teacher/entropy_std": 0.0,
        "response/length_mean": 1.5,
        "response/length_min": 1.0,
        "response/length_max": 3.0,
        "response/truncated_share": 1 / 6,
        "identity/budget_error": 0.25,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found.keys() <= METRICS.keys()


def test_groups_that_only_the_teacher_tells_apart(batch: ScoredBatch, advantages: Advantages) -> None:
    """Ranges of R^T: 5 in the mixed group, 0.06 in the wrong one, 0.04 in the right one; only 0.06 is degenerate
    and above 0.05."""
    teacher_B = torch.tensor([0.0, 5, 0.06, 0, 0.01, 0.05])
    found = step(batch, replace(advantages, teacher_reward_B=teacher_B), Puu(alpha=1.0))
    assert found["group/teacher_only_share"] == pytest.approx(1 / 3)


def test_sign_flips_are_those_of_mixed_groups(batch: ScoredBatch, advantages: Advantages) -> None:
    """One of the two mixed responses is pushed against the verifier; degenerate groups do not count."""
    flipped = replace(advantages, advantage_unified_B=torch.tensor([-0.1, -1, 3, 3, 3, 3]))
    assert step(batch, flipped, Puu(alpha=1.0))["advantage/sign_flip_share"] == 0.5
    between = replace(flipped, advantage_task_B=torch.tensor([0.0, 1, 0, 0, 0, 0]))  # 0 is opposite to nothing
    assert step(batch, between, Puu(alpha=1.0))["advantage/sign_flip_share"] == 0.5
    tied = replace(batch, task_reward_B=torch.ones(6))
    assert "advantage/sign_flip_share" not in step(tied, advantages, Puu(alpha=1.0))


def test_kinds_of_groups_go_by_what_is_correct(batch: ScoredBatch, advantages: Advantages) -> None:
    """With real rewards no group is degenerate, and one is still all right."""
    graded = replace(batch, task_reward_B=torch.tensor([0.9, 0.1, 0.2, 0.3, 1.0, 0.8]))
    right_B = graded.task_reward_B > 0.5
    found = metrics.group_metrics(graded, advantages, Puu(alpha=1.0), right_B)
    kinds = [found[f"group/{kind}_share"] for kind in ("degenerate", "all_right", "all_wrong", "mixed")]
    assert kinds == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])


def test_ratio() -> None:
    ratio = torch.tensor([1.0, 0.5, 2.0, 1.2])
    first = torch.tensor([1.0, 0.99, 1.5, 2.0])
    found = metrics.ratio_metrics(ratio, ratio, first, clip_low=0.2, clip_high=0.3, far=0.5)
    assert (found["policy/ratio_min"], found["policy/ratio_max"]) == (0.5, 2.0)
    assert found["policy/clip_low_share"] == 0.25  # 0.5 < 0.8
    assert found["policy/clip_high_share"] == 0.25  # 2.0 > 1.3, 1.2 is not
    assert found["policy/first_ratio_error"] == 1.0
    assert found["policy/first_ratio_mean"] == pytest.approx(1.51 / 4)
    assert found["policy/first_ratio_far_share"] == 0.25
    expected = sum(r - 1 - math.log(r) for r in (1.0, 0.5, 2.0, 1.2)) / 4
    assert found["policy/approx_kl"] == pytest.approx(expected, abs=1e-7)


def made() -> ScoredBatch:
    """Ragged responses with holes and NaN outside, entropies from 0 to 1.2."""
    batch = padded(random_responses(3, (5, 4, 6)), torch.float32)
    return replace(batch, teacher_entropy_BT=batch.teacher_entropy_BT / 10)


def computed(batch: ScoredBatch, method: str = "uecr") -> Advantages:
    return compute(method_of(method, {"alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0}), batch)


def test_against_a_plain_loop() -> None:
    batch = made()
    advantages = computed(batch)
    found = metrics.split_metrics(batch, advantages, batch.task_reward_B > 0)
    lists: dict[str, list[float]] = {}
    for row in range(batch.responses):
        columns = batch.mask_BT[row].nonzero()[:, 0].tolist()
        for place, column in enumerate(columns):
            entropy = float(batch.teacher_entropy_BT[row, column])
            gap = float(batch.teacher_logp_BT[row, column] - batch.old_logp_BT[row, column])
            parts = (
                "outcome/{}_" + ("right" if float(batch.task_reward_B[row]) > 0 else "wrong"),
                "position/{}_q" + str(1 + 4 * place // len(columns)),
                "entropy_bin/{}_e" + str(1 + sum(entropy >= edge for edge in (0.01, 0.1, 1.0))),
            )
            advantage = float(advantages.advantage_BT[row, column])
            for part in parts:
                for name, value in (
                    ("advantage_mean", advantage),
                    ("advantage_abs_mean", abs(advantage)),
                    ("gap_mean", gap),
                    ("gap_abs_mean", abs(gap)),
                    ("entropy_mean", entropy),
                    ("weight_mean", float(advantages.weight_BT[row, column])),
                ):
                    lists.setdefault(part.format(name), []).append(value)
    tokens = int(batch.mask_BT.sum())
    expected = {name: sum(values) / len(values) for name, values in lists.items()}
    expected |= {
        name.replace("gap_mean", "token_share"): len(values) / tokens
        for name, values in lists.items()
        if "/gap_mean" in name
    }
    lengths = batch.mask_BT.sum(dim=1)
    for suffix, verdict in (("right", 1), ("wrong", 0)):
        rows = (batch.task_reward_B == verdict).nonzero()[:, 0].tolist()
        expected[f"outcome/length_mean_{suffix}"] = sum(int(lengths[row]) for row in rows) / len(rows)
        rewards = [float(advantages.teacher_reward_B[row]) for row in rows]
        expected[f"outcome/teacher_reward_mean_{suffix}"] = sum(rewards) / len(rows)
    assert len([name for name in expected if name.startswith("entropy_bin/gap_mean")]) == 4
    assert found == pytest.approx(expected, abs=1e-9)
    assert set(found) <= set(METRICS)


def test_a_part_without_tokens_is_absent() -> None:
    all_right = replace(made(), task_reward_B=torch.ones_like(made().task_reward_B))
    found = metrics.split_metrics(all_right, computed(all_right), all_right.task_reward_B > 0)
    assert found["outcome/token_share_wrong"] == 0.0
    assert "outcome/gap_mean_wrong" not in found
    assert "outcome/length_mean_wrong" not in found


def test_grpo_has_no_metric_of_the_teacher_anywhere() -> None:
    """Absent, not zero: nothing that the teacher's scores would be needed for."""
    batch = replace(made(), teacher_logp_BT=None, teacher_entropy_BT=None, student_entropy_BT=None)
    found = step(batch, compute(Grpo(), batch), Grpo())
    words = ("teacher", "gap", "entropy", "weight", "ecr/", "unified", "sign_flip")
    assert [name for name in found if any(word in name for word in words)] == []
    assert "outcome/advantage_mean_right" in found
    assert "position/advantage_abs_mean_q1" in found


def test_a_line_of_the_table_is_all_that_a_new_metric_needs(
    batch: ScoredBatch, advantages: Advantages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def positive(step: Step) -> torch.Tensor:
        return step.advantages.advantage_BT[step.trained_BT] > 0

    line = Metric(
        "advantage/positive_share", "share", "mean over tokens", "tokens whose advantage is positive", positive
    )
    monkeypatch.setitem(METRICS, line.name, line)
    assert step(batch, advantages, Grpo())["advantage/positive_share"] == pytest.approx(3 / 9)
    none = Metric("advantage/nothing", "1", "mean over tokens", "nothing", lambda step: step.batch.student_entropy_BT)
    monkeypatch.setitem(METRICS, none.name, none)
    assert "advantage/nothing" not in step(batch, advantages, Grpo())
