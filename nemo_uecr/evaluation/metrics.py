"""avg@k and pass@k with problem-clustered bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_uecr.errors import DataError

#: Two-sided 95%.
QUANTILES = (0.025, 0.975)


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval, as fractions of 1."""

    avg: float
    low: float
    high: float


def average_at_k(rewards: Sequence[Sequence[float]]) -> float:
    """avg@k: mean over problems of the mean over each problem's k samples.

    Args:
        rewards: one row a problem, k verdicts each (1 correct, 0 not).
    """
    return float(np.mean(_matrix(rewards)))


def pass_at_k(rewards: Sequence[Sequence[float]]) -> float:
    """Share of problems with at least one correct sample among the k."""
    return float(np.mean(_matrix(rewards).max(axis=1) > 0))


def bootstrap_interval(benchmarks: Mapping[str, Sequence[Sequence[float]]], *, resamples: int, seed: int) -> Interval:
    """Equal-weight average of avg@k over benchmarks, with a bootstrap interval.

    Problems are resampled within each benchmark, all samples of a problem together, because samples of one problem
    are not independent.

    Args:
        benchmarks: rewards `[problems][k]` of each benchmark; one benchmark gives that benchmark's own interval.
        resamples: bootstrap replicates.
        seed: seed of the resampling.
    """
    if not benchmarks:
        raise DataError("no benchmark to average over; expected at least one")
    generator = np.random.default_rng(seed)
    means = [_matrix(rewards).mean(axis=1) for rewards in benchmarks.values()]
    replicates = np.zeros(resamples)
    for problem_means in means:
        drawn = generator.integers(len(problem_means), size=(resamples, len(problem_means)))
        replicates += problem_means[drawn].mean(axis=1) / len(means)
    low, high = np.quantile(replicates, QUANTILES)
    return Interval(float(np.mean([m.mean() for m in means])), float(low), float(high))


def _matrix(rewards: Sequence[Sequence[float]]) -> np.ndarray:
    lengths = {len(row) for row in rewards}
    if len(lengths) != 1 or 0 in lengths:
        raise DataError(f"samples per problem are {sorted(lengths)}; expected the same number k >= 1 for every problem")
    return np.asarray(rewards, dtype=np.float64)
