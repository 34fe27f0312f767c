"""Intervals, paired differences, the exact test and Holm's correction against values worked by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nemo_uecr.study.statistics import holm, mean_interval, paired_difference

pytest.importorskip("scipy", reason="the study extra is not installed")


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
    assert found.p_value is None  # two pairs are no test


def test_exact_p_value_of_ten_pairs() -> None:
    gaps = [3.0, 1.0, 2.0, -0.5, 4.0, 2.5, 1.5, -1.0, 0.5, 2.0]
    found = paired_difference(dict(enumerate(gaps)), dict.fromkeys(range(10), 0.0), confidence=0.95, seed=0)
    # every one of the 1,024 sign changes, counted as large as the observed one with a margin for rounding
    means = [
        np.mean([s * g for s, g in zip(signs, gaps, strict=True)]) for signs in itertools.product((1, -1), repeat=10)
    ]
    expected = sum(abs(mean) >= abs(np.mean(gaps)) - 1e-12 for mean in means) / 1024
    assert found.p_value == pytest.approx(expected, abs=1e-12)
    assert found.wins == 8


def test_nine_pairs_give_no_p_value() -> None:
    nine = dict.fromkeys(range(9), 1.0) | {0: 2.0}
    assert paired_difference(nine, dict.fromkeys(range(9), 0.0), confidence=0.95, seed=0).p_value is None


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.02, 0.03, 0.5: 4 * 0.01 = 0.04; 3 * 0.02 = 0.06; 2 * 0.03 = 0.06; 1 * 0.5
    assert holm([0.03, 0.5, 0.01, 0.02]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    # monotone: 3 * 0.02 = 0.06 lifts 2 * 0.021 = 0.042
    assert holm([0.02, 0.021, 0.9]) == pytest.approx([0.06, 0.06, 0.9])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_equal_averages_are_no_win_and_tie_in_the_test() -> None:
    """Averages of equal counts, summed in other orders, differ in their last bits alone."""
    reference = dict.fromkeys(range(10), 0.0) | {0: 100 * (0.1 + 0.2), 1: 2.0, 2: 1.0, 3: 1.0}
    arm = dict.fromkeys(range(10), 0.0) | {0: 100 * 0.3}
    assert reference[0] > arm[0]  # by 4e-15
    found = paired_difference(reference, arm, confidence=0.95, seed=0)
    assert found.wins == 3
    # Of the signs of 2, 1 and 1 those with |sum| >= 4 are +++ and ---: 2 of 8.
    assert found.p_value == 2 / 8
