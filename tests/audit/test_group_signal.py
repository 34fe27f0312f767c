"""Pseudo-groups and the signal in them: hand values, an independent slow version, integer verdicts."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_uecr.audit.group_signal import exact_integer_rewards, group_signal_audit, pseudo_groups
from nemo_uecr.audit.groups import teacher_rewards
from nemo_uecr.audit.store import Scores
from tests.audit.made import Made, make_scores, write_scores

pytest.importorskip("pyarrow", reason="scores are read with pyarrow (extra 'data')")


def numbers_of(scores: Scores, *, integer_verdicts: bool = False) -> dict[str, Any]:
    return group_signal_audit(
        scores, anchor="base", sizes=(8, 4), integer_verdicts=integer_verdicts, replicates=30, seed=42
    ).numbers


def made(tmp_path: Path, samples: dict[int, int], problems: int) -> Scores:
    return make_scores(tmp_path / "s", samples, problems=problems, tokens=5, seed=4)


def test_every_problem_gives_a_group_of_eight_and_one_of_four(tmp_path: Path) -> None:
    scores = made(tmp_path, {0: 12, 30: 24}, 5)
    group_B = pseudo_groups(scores.responses, (8, 4), seed=42)
    counts = {int(group): int((group_B == group).sum()) for group in np.unique(group_B)}
    assert sorted(counts.values()) == [4] * 15 + [8] * 15  # 5 problems once, 5 problems twice
    for group in counts:
        rows = group_B == group
        assert len(set(scores.responses.group_B[rows])) == 1  # within one prompt of one checkpoint


def test_the_seed_alone_decides_the_partition(tmp_path: Path) -> None:
    responses = made(tmp_path, {0: 12, 30: 12}, 6).responses
    samples = np.asarray([int(name.split("/")[-1]) for name in responses.ids])

    def parts(seed: int) -> list[tuple[int, str, tuple[int, ...]]]:
        group_B = pseudo_groups(responses, (8, 4), seed=seed)
        return [
            (
                int(responses.checkpoint_B[group_B == group][0]),
                responses.problems[int(np.flatnonzero(group_B == group)[0])],
                tuple(sorted(samples[group_B == group])),
            )
            for group in np.unique(group_B)
        ]

    assert parts(42) == parts(42)
    assert parts(42) != parts(43)
    of = {step: [(problem, own) for each, problem, own in parts(42) if each == step] for step in (0, 30)}
    assert of[0] == of[30]  # the same at every checkpoint
    assert len({own for _, own in of[0] if len(own) == 8}) > 1  # and not the same for every problem


def test_against_a_slow_version(tmp_path: Path) -> None:
    scores = made(tmp_path, {0: 12}, 30)
    row = numbers_of(scores)["checkpoints"][0]
    reward_B = teacher_rewards(scores, "base", clip=5.0)[0]
    group_B = pseudo_groups(scores.responses, (8, 4), seed=42)
    coverage: dict[str, list[float]] = {"degenerate": [], "all_wrong": [], "std_above": [], "range_above": []}
    sizes: dict[str, list[float]] = {"grpo": [], "unified": [], "task": [], "teacher": []}
    for group in np.unique(group_B):
        rows = np.flatnonzero(group_B == group).tolist()
        task = [float(scores.responses.reward_B[r]) for r in rows]
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


def test_integer_verdicts_replace_the_others(tmp_path: Path) -> None:
    texts = [r"\boxed{27}", r"\boxed{27.0}", r"\boxed{54/2}", "27", r"\boxed{28}"] + [r"\boxed{27}"] * 7
    responses = [Made("a", 0.0, [0.1], response=text, answer="27") for text in texts]
    scores = write_scores(tmp_path, responses)
    assert exact_integer_rewards(scores).tolist() == [1, 1, 0, 0, 0] + [1] * 7
    numbers = numbers_of(scores, integer_verdicts=True)
    assert numbers["verdicts_changed_by_integer_rule"] == 9
    assert numbers["checkpoints"][0]["all_wrong"]["value"] == 0.0
    assert numbers_of(scores)["checkpoints"][0]["all_wrong"]["value"] == 1.0
