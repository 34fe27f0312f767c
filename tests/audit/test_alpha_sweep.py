"""The alpha sweep: hand values, an independent slow version, tie points, bounds."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.audit import alpha_sweep
from nemo_uecr.audit.alpha_sweep import GRID_A, conflict_rate, grid_mismatches, margin, tie_point
from nemo_uecr.audit.groups import group_table, teacher_rewards
from nemo_uecr.audit.store import Scored
from tests.audit.made import Made, random_responses, write_scores

rewards = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=5).map(np.asarray)


def numbers_of(scores: Scored) -> dict[str, Any]:
    return alpha_sweep.alpha_sweep_audit(scores, replicates=20, seed=42).numbers


def test_a_group_by_hand() -> None:
    correct_C, wrong_W = np.asarray([0.1, -0.3]), np.asarray([0.2, -0.1])
    # differences w - c: 0.1, 0.5, -0.2, 0.2; a pair inverts beyond alpha = 10, 2, never, 5
    assert tie_point(correct_C, wrong_W) == pytest.approx(2.0)
    assert conflict_rate(correct_C, wrong_W, np.asarray([1.9, 2.1, 5.1, 1e6])).tolist() == [0.0, 0.25, 0.5, 0.75]
    # min(1 - 0.3 a, 1 + 0.1 a) - 0.2 a
    np.testing.assert_allclose(margin(correct_C, wrong_W, np.asarray([0.0, 1.0])), [1.0, 0.5])
    assert tie_point(wrong_W + 1, wrong_W) == math.inf
    # a tie is no inversion: at alpha 2, U_w - U_c = 0, 5e-7 and 2e-6 against the tolerance of 1e-6
    one_C, one_W, two = np.asarray([0.0]), np.asarray([0.5]), np.asarray([2.0])
    assert [conflict_rate(one_C, one_W, two + more).item() for more in (0, 1e-6, 4e-6)] == [0.0, 0.0, 1.0]


@given(rewards, rewards)
def test_tie_points_foretell_the_grid(correct_C: np.ndarray, wrong_W: np.ndarray) -> None:
    tie_G = np.asarray([tie_point(correct_C, wrong_W)])
    safe_GA = (margin(correct_C, wrong_W, GRID_A) > 1e-6)[None]
    inverted_GA = (conflict_rate(correct_C, wrong_W, GRID_A) > 0)[None]
    assert grid_mismatches(tie_G, safe_GA, inverted_GA, GRID_A) == 0
    if tie_G[0] < 7:  # and a state that contradicts the tie point is found
        assert grid_mismatches(tie_G, ~safe_GA, inverted_GA, GRID_A) > 0
        assert grid_mismatches(2 * tie_G + 1, safe_GA, inverted_GA, GRID_A) > 0


def test_sign_changes_and_inversions_by_hand(tmp_path: Path) -> None:
    # R^T 0.0, 0.9, 0.0 with rewards 1, 0, 0: at alpha 1, U = 1, 0.9, 0 with mean 19/30. The order is kept, but the sign
    # of the second response changes.
    made = [Made("a", 1.0, [0.0]), Made("a", 0.0, [0.9]), Made("a", 0.0, [0.0])]
    made += [Made("b", 0.0, [0.9]), Made("b", 0.0, [0.0])]  # degenerate: not counted
    # At alpha 1 a correct response of R^T 0 has U = 1: both incorrect ones of "c" overtake it.
    made += [Made("c", 1.0, [0.0]), Made("c", 0.0, [2.0]), Made("c", 0.0, [3.0])]
    scores = write_scores(tmp_path, made)
    reward_B = teacher_rewards(scores, "student", clip=5.0)[0]
    changed = alpha_sweep.sign_changes(group_table(scores), reward_B, np.asarray([0.0, 1.0]))
    assert changed[:5].tolist() == [[False, False], [False, True], [False, False], [False, False], [False, False]]
    whole = numbers_of(scores)["overall"]
    assert (whole["inverted_groups_at_trained"], whole["inverted_pairs_at_trained"]) == (1, 2)


def test_against_a_slow_version(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, random_responses({30: 8, 60: 6}, problems=40, tokens=6, seed=1))
    numbers = numbers_of(scores)
    found, reward_B, whole = scores, teacher_rewards(scores, "student", clip=5.0)[0], numbers["overall"]
    for place in (0, 20, 60, len(numbers["alpha"]) - 1):
        alpha, by_step, every = float(numbers["alpha"][place]), [], []
        for row in numbers["checkpoints"]:
            rates = []
            for group in np.unique(found.group_B[found.checkpoint_B == row["checkpoint"]]):
                rows = np.flatnonzero(found.group_B == group)
                right, wrong = (rows[found.reward_B[rows] == verdict] for verdict in (1, 0))
                lost = [
                    alpha * reward_B[w] > 1 + alpha * reward_B[c] + 1e-6 for c, w in itertools.product(right, wrong)
                ]
                rates += [sum(lost) / len(lost)] if lost else []
                every += lost
            by_step.append(sum(rates) / len(rates))
            assert row["conflict"][place] == pytest.approx(by_step[-1])
        assert whole["conflict"]["value"][place] == pytest.approx(sum(by_step) / 2)
        assert whole["pair_conflict"][place] == pytest.approx(sum(every) / len(every))
        assert whole["pairs"] == len(every)
    assert (whole["conflict_at_zero"], whole["grid_mismatches"]) == (0.0, 0)
    assert whole["tie_points_within_grid"] > 0  # so the check had something to check
    assert whole["conflict"]["low"][-1] < whole["conflict"]["value"][-1] < whole["conflict"]["high"][-1]
    for row in numbers["checkpoints"]:
        grid = row["below_a10"]  # ten values that divide the open interval (0, a10) evenly
        np.testing.assert_allclose(grid["alpha"], [grid["a10"] * place / 11 for place in range(1, 11)])
        assert (grid["any_inversion"] < 0.1).all()


def test_where_nothing_inverts(tmp_path: Path) -> None:
    """No tie point, no second grid, an upper bound from groups and one from pairs."""
    made = [Made(name, reward, [0.1 * reward]) for name in "abcd" for reward in (1.0, 0.0, 0.0)]
    made += [Made("e", 1.0, [0.3], truncated=True), Made("e", 1.0, [0.2], truncated=True)]
    made += [Made("e", 1.0, [0.1, float("inf")], cut=True)]
    numbers = numbers_of(write_scores(tmp_path, made))
    whole, row = numbers["overall"], numbers["checkpoints"][0]
    assert (whole["mixed_groups"], whole["pairs"]) == (4, 8)
    assert (whole["rule_of_three_groups"], whole["rule_of_three_pairs"]) == pytest.approx((3 / 4, 3 / 8))
    assert row["tie_point"]["infinite_share"] == 1.0
    assert row["below_a10"]["a10"] is None
    assert (row["all_right_groups"], row["degenerate_groups_with_teacher_variation"]) == (1, 1)
    assert (row["truncated"], row["cut"], row["nonfinite_tokens"]) == (2, 1, 1)


def test_a_replicate_without_a_group_of_a_checkpoint_does_not_count_as_zero(tmp_path: Path) -> None:
    """Problem "a" has mixed groups at step 0 alone, "b" at step 5 alone; every group inverts at alpha 8."""
    made = [Made("a", 1.0, [0.0]), Made("a", 0.0, [2.0])]
    made += [Made("b", 1.0, [0.0], checkpoint=5), Made("b", 0.0, [2.0], checkpoint=5)]
    # A replicate draws (a, a), (a, b) or (b, b): each average over the checkpoints that it has is 1.
    conflict = numbers_of(write_scores(tmp_path, made))["overall"]["conflict"]
    assert (conflict["value"][-1], conflict["low"][-1], conflict["high"][-1]) == (1.0, 1.0, 1.0)
