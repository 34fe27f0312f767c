"""avg@k, pass@k and the bootstrap interval against hand values."""

from __future__ import annotations

import random

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.metrics import Interval, average_at_k, bootstrap_interval, pass_at_k


def test_hand_values() -> None:
    """Three problems, two samples: means 1, 0.5, 0, so avg@2 = 0.5; two of three have a correct sample."""
    rewards = [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    assert average_at_k(rewards) == 0.5
    assert pass_at_k(rewards) == pytest.approx(2 / 3)


def test_each_benchmark_weighs_the_same() -> None:
    """One problem at 1 and nine at 0: (1 + 0) / 2 = 0.5, not 1 / 10."""
    found = bootstrap_interval({"a": [[1.0]], "b": [[0.0]] * 9}, resamples=100, seed=0)
    assert found.avg == 0.5
    assert (found.low, found.high) == (0.5, 0.5)  # no benchmark varies within


def test_interval_is_fixed_by_its_seed() -> None:
    dice = random.Random(0)
    rewards = {"a": [[float(dice.random() < 0.4) for _ in range(4)] for _ in range(20)]}
    first = bootstrap_interval(rewards, resamples=500, seed=1)
    assert bootstrap_interval(rewards, resamples=500, seed=1) == first
    assert len({bootstrap_interval(rewards, resamples=100, seed=seed) for seed in range(6)}) > 1
    assert 0 <= first.low < first.avg < first.high <= 1


def test_problems_are_resampled_whole() -> None:
    """Ten problems all right, ten all wrong, 8 samples each: the error is that of 20 coins, not of 160.

    Standard error sqrt(0.25 / 20) = 0.112, so the interval is about 0.5 -+ 0.22; over 160 samples it would be 0.077.
    """
    found = bootstrap_interval({"a": [[1.0] * 8] * 10 + [[0.0] * 8] * 10}, resamples=4000, seed=0)
    assert found.high - found.avg == pytest.approx(0.22, abs=0.04)
    assert found.avg - found.low == pytest.approx(0.22, abs=0.04)


def test_interval_ends_at_the_quantiles_of_95_percent() -> None:
    """Few problems have few averages, so the tail that a quantile falls into can be written down.

    Three problems, one wrong: all three draws are wrong with probability 1/27 = 0.037, more than 0.025, so the low end
    is 0; a 5% tail would end at 1/3. Six problems, half of them wrong: all six draws wrong with probability
    1/64 = 0.0156, less than 0.025, so the low end is not 0 but 1/6, up to which lies (1 + 6) / 64. The high ends
    mirror this. With 20000 replicates a probability is known to 0.0014.
    """

    def interval(right: int, wrong: int) -> Interval:
        return bootstrap_interval({"a": [[1.0]] * right + [[0.0]] * wrong}, resamples=20_000, seed=0)

    assert interval(right=2, wrong=1).low == 0.0
    assert interval(right=1, wrong=2).high == 1.0
    half = interval(right=3, wrong=3)
    assert (half.low, half.high) == (pytest.approx(1 / 6), pytest.approx(5 / 6))


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """200 data sets of 30 problems whose true avg is 0.5: 95% nominal, and a bootstrap falls a little short."""
    dice, covered = random.Random(4), 0
    for trial in range(200):
        rewards = [[float(dice.random() < skill) for _ in range(4)] for skill in (dice.random() for _ in range(30))]
        found = bootstrap_interval({"a": rewards}, resamples=200, seed=trial)
        covered += found.low <= 0.5 <= found.high
    assert 0.88 <= covered / 200 <= 0.99


@pytest.mark.parametrize("rewards", [[], [[]], [[1.0], [1.0, 0.0]], [[], []]])
def test_ragged_or_missing_samples_are_refused(rewards: list[list[float]]) -> None:
    for function in (average_at_k, pass_at_k):
        with pytest.raises(DataError, match="expected the same number k >= 1 for every problem"):
            function(rewards)


def test_nothing_to_average_is_refused() -> None:
    with pytest.raises(DataError, match="expected at least one"):
        bootstrap_interval({}, resamples=100, seed=0)
