"""The numbers of a step by outcome, position and entropy, against hand values and a plain loop."""

from __future__ import annotations

import math

import pytest
import torch

from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.telemetry import statistics
from nemo_uecr.telemetry.names import METRICS
from nemo_uecr.telemetry.splits import quarter, split_metrics


def made(*, seed: int = 3) -> ScoredBatch:
    """Six ragged responses with a hole and NaN outside, entropies over four decades."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(9).unsqueeze(0) < torch.tensor([5, 2, 9, 1, 4, 3]).unsqueeze(1)
    mask[2, 3] = False
    old = -torch.rand(6, 9, generator=generator) - 0.1
    fields = {
        "old_logp_BT": old,
        "teacher_logp_BT": old + torch.randn(6, 9, generator=generator),
        "teacher_entropy_BT": 10.0 ** (4 * torch.rand(6, 9, generator=generator) - 3),
    }
    return ScoredBatch(
        task_reward_B=torch.tensor([1.0, 0, 0, 1, 1, 0]),
        group_B=torch.tensor([0, 0, 1, 1, 2, 2]),
        mask_BT=mask,
        **{name: value.masked_fill(~mask, math.nan) for name, value in fields.items()},
    )


def computed(batch: ScoredBatch, method: str = "uecr") -> Advantages:
    settings = Settings(alpha=1.0, rho=0.5, tau_delta=1.0, tau_entropy=1.0, std_floor=0.0, sample_std=False)
    return METHODS[method].compute(batch, settings, detail=True)


def test_quarters() -> None:
    """Five tokens: floor(4 i / 5) = 0 0 1 2 3. One token lies in the first quarter. A hole is no place."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 0, 0, 0, 0, 0], [1, 0, 1, 1, 0, 1]]).bool()
    found = quarter(mask)
    assert found[0, :5].tolist() == [0, 0, 1, 2, 3]
    assert int(found[1, 0]) == 0
    assert found[2][mask[2]].tolist() == [0, 1, 2, 3]


def test_against_a_plain_loop() -> None:
    batch = made()
    advantages = computed(batch)
    found = split_metrics(batch, advantages)
    lists: dict[str, list[float]] = {}
    for row in range(6):
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
    for suffix, rows in (("right", [0, 3, 4]), ("wrong", [1, 2, 5])):
        expected[f"outcome/length_mean_{suffix}"] = sum(int(lengths[row]) for row in rows) / 3
        rewards = [float(advantages.teacher_reward_B[row]) for row in rows]
        expected[f"outcome/teacher_reward_mean_{suffix}"] = sum(rewards) / 3
    assert len([name for name in expected if name.startswith("entropy_bin/gap_mean")]) == 4
    assert found == pytest.approx(expected, abs=1e-9)
    assert set(found) <= set(METRICS)


def test_a_part_without_tokens_is_absent() -> None:
    batch = made()
    all_right = ScoredBatch(**(vars_of(batch) | {"task_reward_B": torch.ones(6)}))
    found = split_metrics(all_right, computed(all_right))
    assert found["outcome/token_share_wrong"] == 0.0
    assert "outcome/gap_mean_wrong" not in found
    assert "outcome/length_mean_wrong" not in found


def test_grpo_has_no_metric_of_the_teacher_anywhere() -> None:
    """Absent, not zero: nothing that the teacher's scores would be needed for."""
    fields = vars_of(made()) | {"teacher_logp_BT": None, "teacher_entropy_BT": None}
    batch = ScoredBatch(**fields)
    settings = Settings(std_floor=0.0, sample_std=False)
    advantages = METHODS["grpo"].compute(batch, settings, detail=True)
    found = {
        **statistics.reward_metrics(batch, advantages, settings),
        **statistics.group_metrics(batch, advantages, noise=1e-3),
        **statistics.advantage_metrics(batch, advantages, settings),
        **statistics.teacher_metrics(batch),
        **statistics.credit_metrics(batch, advantages),
        **split_metrics(batch, advantages),
    }
    words = ("teacher", "gap", "entropy", "weight", "ecr/", "unified", "sign_flip")
    assert [name for name in found if any(word in name for word in words)] == []
    assert "outcome/advantage_mean_right" in found
    assert "position/advantage_abs_mean_q1" in found


def vars_of(batch: ScoredBatch) -> dict[str, object]:
    names = ("task_reward_B", "group_B", "mask_BT", "old_logp_BT", "teacher_logp_BT", "teacher_entropy_BT")
    return {name: getattr(batch, name) for name in names}
