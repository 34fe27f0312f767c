"""Estimates, intervals and tests against hand values, enumeration and slow versions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.coverage import coverage
from nemo_uecr.stats import (
    ClusterBootstrap,
    holm,
    paired_comparison,
    pass_at_k,
    percentile_interval,
    score_interval,
)


def test_each_benchmark_weighs_the_same() -> None:
    """One problem at 1 and nine at 0: (1 + 0) / 2 = 0.5, not 1 / 10."""
    assert score_interval({"a": [[1.0]], "b": [[0.0]] * 9}).avg == 0.5


def test_interval_by_hand() -> None:
    """Ten problems all right, ten all wrong, 8 samples each: the error is that of 20 coins, not of 160.

    Variance of a mean: (20 * 0.25 + 2 * 0.25) / 20^2 = 0.01375, so n_eff = 0.25 / 0.01375 = 18.18. With t_19 = 2.093
    and t^2 / n_eff = 0.24094 the half-width is 2.093 / 1.24094 * sqrt(0.25 / 18.18 + 0.24094 / (4 * 18.18)) = 0.2203.
    """
    found = score_interval({"a": [[1.0] * 8] * 10 + [[0.0] * 8] * 10})
    assert found.high - found.avg == pytest.approx(0.2203, abs=1e-4)
    assert found.avg - found.low == pytest.approx(0.2203, abs=1e-4)


def test_no_interval_has_zero_width() -> None:
    """30 problems unsolved, Wilson: high = t^2 / (30 + t^2) with t_29 = 2.0452, 4.1829 / 34.1829 = 0.1224."""
    unsolved, solved = (score_interval({"a": [[reward] * 12] * 30}) for reward in (0.0, 1.0))
    assert (unsolved.low, unsolved.high) == (0.0, pytest.approx(0.12237, abs=1e-5))
    assert (solved.low, solved.high) == (pytest.approx(1 - 0.12237, abs=1e-5), 1.0)
    equal = score_interval({"a": [[1.0, 0.0]] * 30})
    assert equal.low < 0.45 < 0.55 < equal.high
    # With equal weights, one unsolved problem beside 300 of another set says little.
    assert score_interval({"a": [[0.0]], "b": [[0.0]] * 300}).high > 0.3


def test_repeated_questions_are_one_observation() -> None:
    """Twelve problems, 16 times each: the interval is that of twelve, and not of 192; verl 3065's benchmarks are so."""
    rows = [[float(problem % 3 == 0), float(problem % 2)] for problem in range(12)]
    once, apart = score_interval({"a": rows}), score_interval({"a": rows * 16})
    together = score_interval({"a": rows * 16}, {"a": [*range(12)] * 16})
    assert together == pytest.approx(once)
    assert apart.high - apart.low < 0.5 * (once.high - once.low)
    assert score_interval({"a": rows}, {"a": range(12)}) == once
    # Of clusters of unequal size the deviations from the mean add up: one of 11 wrong and one right is half known.
    uneven = score_interval({"a": [[0.0]] * 11 + [[1.0]]}, {"a": [0] * 11 + [1]})
    assert uneven.high - uneven.low > 0.8


def test_pairs_of_repeated_questions_are_one() -> None:
    first, second = [0.0, 0.5, 0.25, 0.0, 1.0, 0.5, 0.0], [1.0, 0.25, 0.5, 1.0, 1.0, 0.75, 0.5]
    once = paired_comparison({"a": (first, second)}, seed=1)
    together = paired_comparison({"a": (first * 3, second * 3)}, {"a": [*range(7)] * 3}, seed=1)
    assert together == once
    assert paired_comparison({"a": (first * 3, second * 3)}, seed=1).p_value < once.p_value


def test_benchmarks_that_share_questions_are_no_further_evidence() -> None:
    """AIME 2024 beside a set of the last years' AIME; here every question stands in two benchmarks."""
    rows = [[float(problem % 3 == 0), float(problem % 2)] for problem in range(12)]
    asked = {"a": [*range(12)], "b": [*range(12)][::-1]}
    twice = {"a": rows, "b": rows[::-1]}
    once, apart, together = score_interval({"a": rows}), score_interval(twice), score_interval(twice, asked)
    assert together.high - together.low > 0.95 * (once.high - once.low)
    assert apart.high - apart.low < 0.8 * (once.high - once.low)
    assert together.avg == pytest.approx(once.avg)
    unsolved = {"a": [[0.0]] * 30, "b": [[0.0]] * 30}
    assert score_interval(unsolved, dict.fromkeys("ab", range(30))).high == pytest.approx(0.12237, abs=2e-3)
    first, second = [0.0, 0.5, 0.25, 0.0, 1.0, 0.5, 0.0], [1.0, 0.25, 0.5, 1.0, 1.0, 0.75, 0.5]
    pair, other = (first, second), (first[::-1], second[::-1])
    alone = paired_comparison({"a": pair}, seed=1)
    shared = paired_comparison({"a": pair, "b": other}, {"a": [*range(7)], "b": [*range(7)][::-1]}, seed=1)
    assert (shared.p_value, shared.low, shared.high) == pytest.approx((alone.p_value, alone.low, alone.high))
    assert (shared.better, shared.worse, shared.problems) == (alone.better, alone.worse, 7)
    assert paired_comparison({"a": pair, "b": other}, seed=1).p_value < alone.p_value


@pytest.mark.parametrize("mean", [0.02, 0.08, 0.5, 0.98])
@pytest.mark.parametrize("concentration", [0.3, 3.0])
def test_interval_covers_the_truth_as_often_as_it_says(mean: float, concentration: float) -> None:
    """1,000 sets of 30 problems; at a true coverage of 93 % fewer than 90.5 % of them would be a 3 sigma event."""
    covered, width = coverage((mean,), (30,), concentration, samples=12, sets=1000, seed=3)
    assert covered >= 0.905
    assert 0.01 < width < 0.35


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample() -> None:
    for correct, k in itertools.product((0, 1, 5, 11, 12), (1, 2, 5, 12)):
        row = [1.0] * correct + [0.0] * (12 - correct)
        subsets = list(itertools.combinations(row, k))
        assert pass_at_k([row], k) == pytest.approx(sum(any(each) for each in subsets) / len(subsets), abs=1e-12)
    assert pass_at_k([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], 2) == pytest.approx(2 / 3)


def test_paired_comparison_by_hand() -> None:
    # Benchmark x: gaps 1/2, 0 -> mean 1/4. Benchmark y: gap -1/2 -> -1/2. Average (1/4 - 1/2)/2 = -1/8.
    found = paired_comparison({"x": ([0.0, 1.0], [0.5, 1.0]), "y": ([1.0], [0.5])}, seed=0)
    assert found.difference == pytest.approx(-0.125)
    assert (found.first, found.second) == (pytest.approx(0.75), pytest.approx(0.625))  # ((0+1)/2+1)/2, ((.5+1)/2+.5)/2
    assert (found.better, found.worse, found.problems) == (1, 1, 3)
    # Three problems have eight sign changes, none of them rarer than 5 %.
    assert (found.low, found.high) == (-1, 1)


def test_p_is_that_of_every_sign_change() -> None:
    """Eight unequal gaps: the two-sided share of all 256 sign changes, by enumeration."""
    gaps = np.asarray([0.5, -0.25, 0.75, 0.125, 0.25, -0.5, 0.625, 0.375])
    sums = [float(np.sum(np.asarray(signs) * gaps)) for signs in itertools.product((1, -1), repeat=8)]
    exact = 2 * sum(each >= gaps.sum() for each in sums) / 256
    assert paired_comparison({"x": ([0.0] * 8, gaps.tolist())}, seed=1).p_value == pytest.approx(exact, abs=1e-12)
    assert paired_comparison({"x": ([0.5] * 6, [0.5] * 6)}, seed=3).p_value == 1.0


def test_interval_and_p_never_contradict_each_other() -> None:
    dice = np.random.default_rng(5)
    near = 0
    for trial in range(150):
        gaps = dice.normal(0.05, 0.15, size=30).round(1)  # ties as verdicts have them
        gaps[: trial % 2 * 26] = 0.0  # every other time at most four differ
        found = paired_comparison({"x": ([0.0] * 30, gaps.tolist())}, seed=trial)
        assert (found.p_value <= 0.05) == (not found.low <= 0 <= found.high)
        near += 0.01 < found.p_value < 0.2
    assert near > 10


def test_few_problems_that_differ_have_a_wide_interval() -> None:
    """Six equal gaps and two made-up ones of +-1: 256 draws, the sixth smallest mean is that of -1 and a gap: -1/2."""
    found = paired_comparison({"x": ([0.5] * 6, [0.5] * 6)}, seed=0)
    assert (found.difference, found.low, found.high) == (0.0, -0.5, 0.5)
    one = paired_comparison({"x": ([0.0] * 30, [1.0] + [0.0] * 29)}, seed=0)
    assert one.low < -0.05
    assert one.high > 0.1


def test_a_ratio_is_that_of_the_drawn_problems() -> None:
    generator = np.random.default_rng(0)
    above, below = generator.random((5, 3)), generator.random((5, 3))
    resamples = ClusterBootstrap.draw(np.arange(5), replicates=20, seed=1)
    assert resamples.count_SK.sum(axis=1).tolist() == [5.0] * 20
    found = resamples.replicate_ratios(above, below)
    for counts, row in zip(resamples.count_SK.astype(int), found, strict=True):
        drawn = np.repeat(np.arange(5), counts)
        np.testing.assert_allclose(row, above[drawn].sum(axis=0) / below[drawn].sum(axis=0), rtol=1e-12)


def test_a_replicate_without_weight_has_no_value_and_is_counted() -> None:
    resamples = ClusterBootstrap(np.asarray([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]]))
    found = resamples.replicate_ratios(np.asarray([3.0, 5.0]), np.asarray([1.0, 0.0]))
    # drawn: problem 0 twice 6/2; both 8/1; problem 1 twice: no weight
    assert found[:2].tolist() == [3.0, 8.0]
    assert np.isnan(found[2])
    ends = percentile_interval(found)
    assert ends["low"] == pytest.approx(3.0 + 0.025 * 5.0)
    assert ends["high"] == pytest.approx(3.0 + 0.975 * 5.0)
    assert np.isnan(percentile_interval(np.full((4, 1), np.nan))["low"]).all()


def test_repeated_values_of_a_cluster_carry_no_information() -> None:
    values, problems = np.random.default_rng(3).random(30), np.arange(30)
    single, repeated = (
        ClusterBootstrap.draw(problems, replicates=500, seed=0).mean(
            np.repeat(values, times), np.ones(30 * times, dtype=bool), np.repeat(problems, times)
        )
        for times in (1, 10)
    )
    assert (repeated["low"], repeated["high"]) == pytest.approx((single["low"], single["high"]))
    assert repeated["of"] == 300


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.02, 0.03, 0.5: 4 * 0.01 = 0.04; 3 * 0.02 = 0.06; 2 * 0.03 = 0.06; 1 * 0.5
    assert holm([0.03, 0.5, 0.01, 0.02]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    # monotone: 3 * 0.02 = 0.06 lifts 2 * 0.021 = 0.042
    assert holm([0.02, 0.021, 0.9]) == pytest.approx([0.06, 0.06, 0.9])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
