"""The credit map shows what `core` computes from the saved batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.core.methods import METHODS
from nemo_uecr.report.credit import chosen_rows, credit_maps, read_batch, step_map
from nemo_uecr.telemetry.run_folder import read_run

RunMaker = Callable[..., Path]
PLENTY = 100_000


def test_numbers_are_those_of_core(make_run: RunMaker) -> None:
    run = read_run(make_run("uecr"))
    saved = read_batch(run.batches[0])
    shown = step_map(saved, token_budget=PLENTY)
    expected = METHODS["uecr"].compute(saved.batch, saved.settings, detail=True)
    rows = chosen_rows(saved, token_budget=PLENTY)
    assert len(rows) == 24
    for row, response in zip(rows, shown["responses"], strict=True):
        valid = saved.batch.mask_BT[row]
        assert response["text"] == saved.texts[row]["tokens"]
        assert response["before"] == pytest.approx(float(expected.advantage_unified_B[row]), rel=1e-4)
        assert response["after"] == pytest.approx(expected.advantage_BT[row][valid].tolist(), rel=1e-4)
        assert response["w"] == pytest.approx(expected.weight_BT[row][valid].tolist(), rel=1e-4)
        delta = (saved.batch.teacher_logp_BT - saved.batch.old_logp_BT)[row][valid]
        assert response["delta"] == pytest.approx(delta.tolist(), rel=1e-4)


def test_redistribution_sums_to_zero_in_mixed_groups(make_run: RunMaker) -> None:
    shown = credit_maps(read_run(make_run("uecr")), token_budget=PLENTY)
    moved = [one for step in shown for one in step["responses"] if one["sums"] is not None]
    assert moved
    for one in moved:
        assert one["kind"].startswith("mixed")
        assert one["sums"]["given"] > 0.001
        assert one["sums"]["given"] + one["sums"]["taken"] == pytest.approx(0.0, abs=2e-6)
        assert abs(one["sums"]["budget"]) <= 1e-6


def test_degenerate_group_moves_nothing(make_run: RunMaker) -> None:
    shown = credit_maps(read_run(make_run("uecr")), token_budget=PLENTY)
    flat = [one for step in shown for one in step["responses"] if one["kind"].startswith("all")]
    assert flat
    assert all(one["change"] is None and one["scalars"]["task"] == 0.0 for one in flat)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_has_a_map(make_run: RunMaker, method: str) -> None:
    (step,) = credit_maps(
        read_run(make_run("any", method=method, steps=1, evaluations=(), batches=(1,))), token_budget=PLENTY
    )
    assert step["method"] == method
    assert all(len(one["after"]) == one["count"] for one in step["responses"])


def test_method_without_teacher_shows_what_there_is(make_run: RunMaker) -> None:
    step = credit_maps(read_run(make_run("grpo", method="grpo")), token_budget=PLENTY)[0]
    one = step["responses"][0]
    assert one["delta"] is None
    assert one["entropy"] is None
    assert one["w"] is None
    assert set(one["after"]) == {one["before"]}


def test_second_surrogate_is_shown_apart(make_run: RunMaker) -> None:
    step = credit_maps(read_run(make_run("naive", method="grpo_plus_opd")), token_budget=PLENTY)[0]
    one = step["responses"][0]
    assert one["opd"] == one["delta"]  # every gap lies inside the clip here
    assert one["change"] is None


def test_chosen_rows_are_whole_groups_with_a_degenerate_one(make_run: RunMaker) -> None:
    saved = read_batch(read_run(make_run("uecr", before=0.85)).batches[0])
    rows = chosen_rows(saved, token_budget=PLENTY)
    labels = saved.batch.group_B[rows].tolist()
    assert [labels.count(label) for label in dict.fromkeys(labels)] == [8, 8, 8]
    spreads = [len(set(saved.batch.task_reward_B[saved.batch.group_B == label].tolist())) for label in set(labels)]
    assert sorted(spreads) == [1, 2, 2]
