"""The clustered bootstrap against a slow version that repeats the drawn problems one by one."""

from __future__ import annotations

import numpy as np
import pytest

from nemo_uecr.audit.bootstrap import Resamples, interval, totals
from nemo_uecr.audit.share import Sampler


def test_a_ratio_is_that_of_the_drawn_problems() -> None:
    generator = np.random.default_rng(0)
    above, below = generator.random((5, 3)), generator.random((5, 3))
    resamples = Resamples.draw(5, replicates=20, seed=1)
    assert resamples.count_SK.sum(axis=1).tolist() == [5.0] * 20
    found = resamples.ratio(above, below)
    for counts, row in zip(resamples.count_SK.astype(int), found, strict=True):
        drawn = np.repeat(np.arange(5), counts)
        np.testing.assert_allclose(row, above[drawn].sum(axis=0) / below[drawn].sum(axis=0), rtol=1e-12)


def test_a_replicate_without_weight_has_no_value_and_is_counted() -> None:
    resamples = Resamples(np.asarray([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]]))
    found = resamples.ratio(np.asarray([3.0, 5.0]), np.asarray([1.0, 0.0]))
    # drawn: problem 0 twice 6/2; both 8/1; problem 1 twice: no weight
    assert found[:2].tolist() == [3.0, 8.0]
    assert np.isnan(found[2])
    ends = interval(found)
    assert ends["replicates"] == 2
    assert ends["low"] == pytest.approx(3.0 + 0.025 * 5.0)
    assert ends["high"] == pytest.approx(3.0 + 0.975 * 5.0)
    assert np.isnan(interval(np.full((4, 1), np.nan))["low"]).all()


def test_clusters_widen_the_interval() -> None:
    """Ten equal values a problem carry no more than one: the width is that of the problems' bootstrap."""
    values = np.random.default_rng(3).random(30)
    problems = np.arange(30)
    every = np.ones(30, dtype=bool)
    single = Sampler.draw(problems, replicates=500, seed=0).mean(values, every, problems)
    repeated = Sampler.draw(np.repeat(problems, 10), replicates=500, seed=0).mean(
        np.repeat(values, 10), np.ones(300, dtype=bool), np.repeat(problems, 10)
    )
    assert repeated["low"] == pytest.approx(single["low"])
    assert repeated["high"] == pytest.approx(single["high"])
    assert repeated["of"] == 300


def test_the_interval_covers_as_often_as_it_says() -> None:
    generator, covered = np.random.default_rng(5), 0
    for trial in range(200):
        effect = generator.normal(0.0, 1.0, 40)
        value = np.repeat(effect, 4) + generator.normal(0.0, 0.2, 160)
        problem = np.repeat(np.arange(40), 4)
        found = Sampler.draw(problem, replicates=300, seed=trial).mean(value, np.ones(160, dtype=bool), problem)
        covered += found["low"] <= 0.0 <= found["high"]
    # 95% of 200 is 190, its standard deviation 3; the percentile bootstrap of 40 clusters falls a little short of it
    assert covered >= 175


def test_totals() -> None:
    assert totals(np.asarray([1.0, 2.0, 4.0]), np.asarray([0, 2, 0]), 4).tolist() == [5.0, 0.0, 2.0, 0.0]
