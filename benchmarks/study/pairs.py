"""Means and differences over independent pairs of student and seed, with the problems held fixed.

Shape legend: N = pairs, S = sign changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nemo_uecr.stats import DECIMALS, changed_means, two_sided

#: A p-value is reported from this many pairs; with fewer, the smallest possible one is no evidence.
PAIRS_FOR_A_TEST = 10
#: The test is exact up to this many sign changes: sixteen pairs.
SIGN_CHANGES = 2**16
TEST_NAME = "exact two-sided sign-flip permutation test of the mean paired difference"


@dataclass(frozen=True)
class Mean:
    """A mean over n pairs with its interval: low, high = mean -+ t_{n-1} s / sqrt(n)."""

    mean: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Paired:
    """Reference minus arm over their common pairs; ``p_value`` is uncorrected, and None below ten pairs."""

    difference: Mean
    wins: int
    p_value: float | None


def mean_interval(values: Sequence[float], *, confidence: float) -> Mean:
    """Mean with Student's t interval over at least two independent pairs."""
    from scipy import stats

    data = np.asarray(values, dtype=np.float64)
    centre = float(data.mean())
    spread = float(data.std(ddof=1)) / len(data) ** 0.5
    half = float(stats.t.ppf(0.5 + confidence / 2, len(data) - 1)) * spread
    return Mean(centre, centre - half, centre + half, len(data))


def paired_difference(
    reference: Mapping[int, float], arm: Mapping[int, float], *, confidence: float, seed: int
) -> Paired:
    """Reference minus arm on their common pairs; ``seed`` draws the sign changes when there are too many to try all."""
    common = sorted(reference.keys() & arm.keys())
    gaps = np.asarray([reference[pair] - arm[pair] for pair in common], dtype=np.float64)
    p_value = None
    if len(common) >= PAIRS_FOR_A_TEST:
        p_value = two_sided(*changed_means(gaps, np.ones(len(gaps)), SIGN_CHANGES, seed))
    wins = int((np.round(gaps, DECIMALS) > 0).sum())
    return Paired(mean_interval(gaps.tolist(), confidence=confidence), wins, p_value)
