"""The credit map shows what `core` computes from the saved batch."""

from __future__ import annotations

import pytest

from nemo_uecr.core.methods import METHODS
from nemo_uecr.report.credit import chosen_rows, credit_maps, step_map
from nemo_uecr.responses.replay import compute_again, scored_batch
from nemo_uecr.responses.table import read_responses
from nemo_uecr.telemetry.run_folder import read_run
from tests.report.stories import RunMaker

PLENTY = 100_000


def test_numbers_are_those_of_core(make_run: RunMaker) -> None:
    path = read_run(make_run("uecr")).batches[1]
    saved = read_responses(path)
    batch, words = scored_batch(saved), saved.words(range(len(saved)))
    expected = compute_again(saved, batch)
    gap_BT = batch.teacher_logp_BT - batch.old_logp_BT
    rows = chosen_rows(batch, token_budget=PLENTY)
    assert len(rows) == 24
    for row, response in zip(rows, step_map(1, path, token_budget=PLENTY)["responses"], strict=True):
        valid = batch.mask_BT[row]
        assert response["text"] == words[row]
        assert response["before"] == pytest.approx(float(expected.advantage_unified_B[row]), rel=1e-4)
        shown = {"after": expected.advantage_BT, "w": expected.weight_BT, "delta": gap_BT}
        for name, value_BT in shown.items():
            assert response[name] == pytest.approx(value_BT[row][valid].tolist(), rel=1e-4), name


def test_redistribution_sums_to_zero_in_mixed_groups_and_moves_nothing_in_others(make_run: RunMaker) -> None:
    shown = [one for step in credit_maps(read_run(make_run("uecr")), token_budget=PLENTY) for one in step["responses"]]
    moved, flat = ([one for one in shown if one["kind"].startswith(kind)] for kind in ("mixed", "all"))
    assert moved
    assert flat
    for one in moved:
        assert one["sums"]["given"] > 0.001
        assert one["sums"]["given"] + one["sums"]["taken"] == pytest.approx(0.0, abs=2e-6)
        assert abs(one["sums"]["budget"]) <= 1e-6
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


def test_chosen_rows_are_whole_groups_with_a_degenerate_one(make_run: RunMaker) -> None:
    path = read_run(make_run("uecr")).batches[1]
    batch = scored_batch(read_responses(path))
    labels = batch.group_B[chosen_rows(batch, token_budget=PLENTY)].tolist()
    assert [labels.count(label) for label in dict.fromkeys(labels)] == [8, 8, 8]
    spreads = [len(set(batch.task_reward_B[batch.group_B == label].tolist())) for label in set(labels)]
    assert sorted(spreads) == [1, 2, 2]
