"""Means over pairs, paired differences, an exact test and its correction for many comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: From this many pairs on a p-value is given; with fewer, the smallest possible one is no evidence.
PAIRS_FOR_A_TEST = 10
#: Up to this many sign changes the test is exact: sixteen pairs.
SIGN_CHANGES = 2**16
#: Decimals of a difference in percent; averages that are equal fractions differ by rounding in the last bits alone.
DECIMALS = 9
TEST_NAME = "exact two-sided sign-flip permutation test of the mean paired difference"


@dataclass(frozen=True)
class Mean:
    """A mean over pairs with its interval.

    low, high = mean -+ t_{n-1} s / sqrt(n)
    """

    mean: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Paired:
    """Reference minus arm over the pairs that both have; ``p_value`` from ten pairs on, uncorrected."""

    difference: Mean
    wins: int
    p_value: float | None


def mean_interval(values: Sequence[float], *, confidence: float) -> Mean:
    """Mean with Student's t interval; pairs are independent, each has a student and a seed of its own.

    Args:
        values: one a pair, at least two.
        confidence: level, for example 0.95.
    """
    from scipy import stats

    data = np.asarray(values, dtype=np.float64)
    centre = float(data.mean())
    spread = float(data.std(ddof=1)) / len(data) ** 0.5
    half = float(stats.t.ppf(0.5 + confidence / 2, len(data) - 1)) * spread
    return Mean(centre, centre - half, centre + half, len(data))


def paired_difference(
    reference: Mapping[int, float], arm: Mapping[int, float], *, confidence: float, seed: int
) -> Paired:
    """Reference minus arm on the pairs that both have; a pair with equal values is no win of either.

    Args:
        reference: value by pair.
        arm: value by pair.
        confidence: level of the interval.
        seed: of the sign changes where there are too many to try all.
    """
    from scipy import stats

    common = sorted(reference.keys() & arm.keys())
    gaps = np.asarray([reference[pair] - arm[pair] for pair in common], dtype=np.float64)
    p_value = None
    if len(common) >= PAIRS_FOR_A_TEST:
        test = stats.permutation_test(
            (gaps,),
            lambda x, axis: np.round(np.mean(x, axis=axis), DECIMALS),
            permutation_type="samples",
            vectorized=True,
            n_resamples=SIGN_CHANGES,
            rng=np.random.default_rng(seed),
        )
        p_value = float(test.pvalue)
    return Paired(
        mean_interval(gaps.tolist(), confidence=confidence), int((np.round(gaps, DECIMALS) > 0).sum()), p_value
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p_(i) becomes max over j <= i of min(1, (m - j + 1) p_(j)), in the given order."""
    order = np.argsort(p_values)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order.tolist()):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
