"""Pseudo-groups and the signal in them: the partition, and an independent slow version."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest

from nemo_uecr.audit.group_signal import group_signal_audit, pseudo_groups
from nemo_uecr.audit.groups import teacher_rewards
from tests.audit.made import random_responses, write_scores


def test_the_seed_alone_decides_the_partition(tmp_path: Path) -> None:
    """A group of eight and one of four of each twelve responses, the same at every checkpoint."""
    made = random_responses({0: 12, 30: 12, 60: 24}, problems=6, tokens=5, seed=4)
    responses = write_scores(tmp_path, made)

    def parts(seed: int) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
        group_B = pseudo_groups(responses, seed=seed)
        found: dict[int, list[tuple[str, tuple[int, ...]]]] = {0: [], 30: [], 60: []}
        for group in np.unique(group_B):
            rows = np.flatnonzero(group_B == group)
            assert len(set(responses.group_B[rows])) == 1  # within one prompt of one checkpoint
            samples = tuple(sorted(responses.sample_B[rows].tolist()))
            found[int(responses.checkpoint_B[rows[0]])].append((responses.problems[rows[0]], samples))
        return found

    found = parts(42)
    assert found == parts(42)
    assert found != parts(43)
    assert found[0] == found[30]
    assert len({own for _, own in found[0] if len(own) == 8}) > 1  # and not the same for every problem
    assert sorted(len(own) for _, own in found[60]) == [4] * 12 + [8] * 12


def test_against_a_slow_version(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, random_responses({0: 12}, problems=30, tokens=5, seed=4))
    row = group_signal_audit(scores, anchor="base", replicates=30, seed=42).numbers["checkpoints"][0]
    reward_B = teacher_rewards(scores, "base", clip=5.0)[0]
    group_B = pseudo_groups(scores, seed=42)
    coverage: dict[str, list[float]] = {"degenerate": [], "all_wrong": [], "std_above": [], "range_above": []}
    sizes: dict[str, list[float]] = {"grpo": [], "unified": [], "task": [], "teacher": []}
    for group in np.unique(group_B):
        rows = np.flatnonzero(group_B == group).tolist()
        task = [float(scores.reward_B[r]) for r in rows]
        teacher = [float(reward_B[r]) for r in rows]
        unified = [a + b for a, b in zip(task, teacher, strict=True)]
        deviation = statistics.pstdev(unified)
        coverage["degenerate"].append(len(set(task)) == 1)
        coverage["all_wrong"].append(sum(task) == 0)
        coverage["std_above"].append(deviation > 0.1)
        coverage["range_above"].append(max(teacher) - min(teacher) > 0.05)
        if len(set(task)) == 2:
            means = [statistics.fmean(values) for values in (task, teacher, unified)]
            sizes["task"] += [abs(value - means[0]) / (deviation + 1e-6) for value in task]
            sizes["teacher"] += [abs(value - means[1]) / (deviation + 1e-6) for value in teacher]
            sizes["unified"] += [abs(value - means[2]) / (deviation + 1e-6) for value in unified]
            sizes["grpo"] += [abs(value - means[0]) / (statistics.pstdev(task) + 1e-6) for value in task]
    assert row["groups"] == 60
    for name, values in coverage.items():
        assert row[name]["value"] == pytest.approx(statistics.fmean(values)), name
    for name, values in sizes.items():
        assert row["mean_absolute"][name]["value"] == pytest.approx(statistics.fmean(values)), name
    share = sum(sizes["teacher"]) / (sum(sizes["task"]) + sum(sizes["teacher"]))
    assert row["teacher_share"]["value"] == pytest.approx(share)
    assert row["teacher_share"]["low"] < share < row["teacher_share"]["high"]
