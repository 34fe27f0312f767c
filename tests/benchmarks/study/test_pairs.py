"""Means, intervals and the test over pairs, by hand."""

from __future__ import annotations

import pytest

from benchmarks.study.pairs import mean_interval, paired_difference


def test_mean_interval_of_five() -> None:
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0], confidence=0.95)
    # s = sqrt(10 / 4) = 1.58114, s / sqrt(5) = 0.707107, t(0.975, 4) = 2.776445: half = 1.963243
    assert (found.mean, found.pairs) == (3.0, 5)
    assert found.low == pytest.approx(3.0 - 1.963243, abs=1e-5)
    assert found.high == pytest.approx(3.0 + 1.963243, abs=1e-5)


def test_difference_uses_the_common_pairs_only() -> None:
    found = paired_difference({0: 5.0, 1: 7.0, 2: 100.0}, {0: 4.0, 1: 4.0, 7: -50.0}, confidence=0.9, seed=0)
    # gaps 1 and 3: mean 2, s = sqrt(2), s / sqrt(2) = 1, t(0.95, 1) = 6.313752
    assert (found.difference.mean, found.difference.pairs, found.wins) == (2.0, 2, 2)
    assert found.difference.high == pytest.approx(2.0 + 6.313752, abs=1e-5)
    assert found.p_value is None  # below ten pairs


def test_equal_averages_are_no_win_and_tie_in_the_test() -> None:
    """Averages of equal counts, summed in other orders, differ in their last bits alone."""
    reference = dict.fromkeys(range(10), 0.0) | {0: 100 * (0.1 + 0.2), 1: 2.0, 2: 1.0, 3: 1.0}
    arm = dict.fromkeys(range(10), 0.0) | {0: 100 * 0.3}
    assert reference[0] > arm[0]  # by 4e-15
    found = paired_difference(reference, arm, confidence=0.95, seed=0)
    assert found.wins == 3
    # Of the signs of 2, 1 and 1 those with |sum| >= 4 are +++ and ---: 2 of 8.
    assert found.p_value == 2 / 8
