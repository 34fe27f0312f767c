"""Estimates with intervals and paired tests for tables and audits.

Evaluations and audits generalise over problems: clusters of dependent responses.

Shape legend: N = observations, K = clusters (problems), S = bootstrap replicates; values may have further axes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray

#: Two-sided 95 %.
QUANTILES = (0.025, 0.975)
#: Sign changes drawn for a paired comparison.
RESAMPLES = 10_000
#: With fewer problems that differ, no p-value can reach 0.05.
DIFFERENT = 6
#: Sums in another order differ in the last bits; differences in percent are compared to this many decimals.
DECIMALS = 9

#: ``value``, ``low``, ``high`` (numbers, or arrays of one shape) and, for a mean, ``of``: the number of observations.
Share = dict[str, Any]


# avg@k and pass@k


class Interval(NamedTuple):
    """An estimate with its 95 % interval, as fractions of 1; in tables in percent."""

    avg: float
    low: float
    high: float


def pass_at_k(rewards: Sequence[Sequence[float]], k: int) -> float:
    """Probability that at least one of k samples is correct, averaged over problems.

    pass@k = mean over problems of 1 - C(n - c, k) / C(n, k),   n samples, c of them correct

    Args:
        rewards: one row per problem with its n rewards (1 correct, 0 not).
        k: from 1 to n.
    """
    shares = []
    for row in rewards:
        correct = sum(reward > 0 for reward in row)
        shares.append(1.0 - comb(len(row) - correct, k) / comb(len(row), k))
    return sum(shares) / len(shares)


def score_interval(
    benchmarks: Mapping[str, Sequence[Sequence[float]]], asked: Mapping[str, Sequence[Hashable]] | None = None
) -> Interval:
    """Equal-weight average of avg@k over benchmarks, with a Wilson interval at the effective number of problems.

        n_eff = p (1 - p) / v,   v = sum_b s_b^2 / (M^2 n_b)
        s_b^2 = ((n_b - 1) var_b + 2 r (1 - r)) / n_b,   r = (n_b p_b + 1) / (n_b + 2)

    Problems that ask the same are one cluster: (n_b - 1) var_b is then the sum over the K_b clusters of their squared
    sums of deviations from p_b, and K_b stands for n_b in r and in the degrees of freedom. Benchmarks that ask the same
    share a cluster: v then has the products of its sums, too.

    p is the average of the M benchmarks' p_b, var_b the sample variance of benchmark b's n_b problem means, because
    samples of one problem are not independent. Two pseudo-problems, one solved and one not, keep the interval from
    collapsing when few problems are solved. It covers the choice of problems, not of training seeds; ``python -m
    benchmarks.coverage`` measures how often it covers.

    Args:
        benchmarks: rewards `[problems][k]`, 0 or 1, of each benchmark.
        asked: what each problem asks; by default each another thing.
    """
    from scipy import stats

    rows = {name: np.asarray(rewards, dtype=np.float64) for name, rewards in benchmarks.items()}
    sets, sizes, shares = len(rows), [], dict[Hashable, list[float]]()
    average = float(np.mean([row.mean() for row in rows.values()]))
    variance = 0.0
    for name, row in rows.items():
        means, n = row.mean(axis=1), len(row)
        asks_N = asked[name] if asked else [(name, place) for place in range(n)]
        cluster_N = clusters_of(asks_N)
        sizes.append(count := int(cluster_N.max()) + 1)
        guess = (count * means.mean() + 1) / (count + 2)
        total_K = cluster_totals(means - means.mean(), cluster_N, count)
        variance += (float(np.square(total_K).sum()) / n**2 + 2 * guess * (1 - guess) / count**2) / sets**2
        for asks, total in zip(dict.fromkeys(asks_N), total_K.tolist(), strict=True):
            shares.setdefault(asks, []).append(total / n / sets)
    variance += sum(sum(each) ** 2 - sum(share**2 for share in each) for each in shares.values() if len(each) > 1)
    problems = len(shares)
    effective = sets**2 / sum(1 / size for size in sizes)  # the problems, where the sets are equal
    effective *= problems / sum(sizes)
    if 0 < average < 1:  # no more than as many as there are samples
        effective = min(max(average * (1 - average) / variance, 1), sum(row.size for row in rows.values()))
    t = float(stats.t.ppf(QUANTILES[1], max(problems - sets, 1)))
    centre = (average + t**2 / (2 * effective)) / (1 + t**2 / effective)
    half = t / (1 + t**2 / effective) * (average * (1 - average) / effective + (t / (2 * effective)) ** 2) ** 0.5
    return Interval(average, float(min(max(centre - half, 0.0), average)), float(max(min(centre + half, 1.0), average)))


# Two evaluations on the same problems


@dataclass(frozen=True)
class Difference:
    """Second minus first with its 95 % interval, and the avg@k of both, as fractions of 1.

    ``p_value`` is two-sided, and at most 0.05 exactly when the interval excludes 0. ``better`` and ``worse`` count the
    problems on which the second wins and loses; those that ask the same are one.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    better: int
    worse: int
    problems: int

    @property
    def few(self) -> bool:
        """Whether too few problems differ for p to reach 0.05."""
        return self.better + self.worse < DIFFERENT


def paired_comparison(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    asked: Mapping[str, Sequence[Hashable]] | None = None,
    *,
    seed: int,
) -> Difference:
    """Average difference over benchmarks with equal weight: a sign-change test and the interval that inverts it.

    d_p = second_p - first_p for problem p.   difference = mean over benchmarks of mean over their problems of d_p

    The test rejects a shift x when the weighted sum of the d_p - x is extreme among the sums with random signs. Random
    signs make the sum smaller exactly when the mean of the d_p whose sign changed is above x. The ends of the interval
    are therefore quantiles of such means, and p counts the means on either side of 0. The d_p are assumed symmetric
    about the difference. The test is exact up to 13 problems. With fewer than six problems that differ, two
    pseudo-problems per benchmark, one better by 1 and one worse, widen the interval; with fewer than six problems it is
    the whole range.

    Args:
        pairs: problem means of both, by benchmark, in the same order of problems.
        asked: what each problem asks; those that ask the same count as one, with the weight of all. By default each
            asks another thing.
        seed: of the sign changes.
    """
    gaps, weights, means, asks = [], [], [], list[Hashable]()
    for name, (first, second) in pairs.items():
        gap_P = np.subtract(second, first, dtype=np.float64)
        asks_P = asked[name] if asked else [(name, place) for place in range(len(gap_P))]
        cluster_P = clusters_of(asks_P)
        asks += dict.fromkeys(asks_P)
        problems_N = np.bincount(cluster_P)
        means.append(gap_P.mean())
        gaps.append(cluster_totals(gap_P, cluster_P, len(problems_N)) / problems_N)
        weights.append(problems_N / len(gap_P) / len(pairs))
    gap_N, weight_N = np.concatenate(gaps), np.concatenate(weights)
    if (count := len(set(asks))) < len(asks):  # benchmarks that ask the same
        cluster_N, part_N = clusters_of(asks), gap_N * weight_N
        weight_N = cluster_totals(weight_N, cluster_N, count)
        gap_N = cluster_totals(part_N, cluster_N, count) / weight_N
    mean_S, same = changed_means(gap_N, weight_N, RESAMPLES, seed)
    p_value = two_sided(mean_S, same)
    better, worse = int((gap_N > 0).sum()), int((gap_N < 0).sum())
    low, high = -1.0, 1.0
    if len(gap_N) >= DIFFERENT:
        if better + worse < DIFFERENT:
            pseudo = [(sign, 1 / len(gap) / len(gaps)) for gap in gaps for sign in (1.0, -1.0)]
            more_N, weights_N = np.asarray(pseudo).T
            mean_S, same = changed_means(np.append(gap_N, more_N), np.append(weight_N, weights_N), RESAMPLES, seed)
        rejected = int(QUANTILES[0] * (len(mean_S) + same)) - same
        low, high = float(mean_S[rejected]), float(mean_S[-1 - rejected])
    return Difference(
        first=float(np.mean([np.mean(first) for first, _ in pairs.values()])),
        second=float(np.mean([np.mean(second) for _, second in pairs.values()])),
        difference=float(np.mean(means)),
        low=low,
        high=high,
        p_value=p_value,
        better=better,
        worse=worse,
        problems=len(gap_N),
    )


def two_sided(mean_S: Array, same: int) -> float:
    """Two-sided p of the observed signs, from `changed_means`."""
    side = same + min(int((mean_S <= 0).sum()), int((mean_S >= 0).sum()))
    return min(1.0, 2 * side / (len(mean_S) + same))


def changed_means(gap_N: Array, weight_N: Array, draws: int, seed: int) -> tuple[Array, int]:
    """Sorted weighted means of the gaps whose sign each draw changes, and the number of draws that change none.

    All 2^N sign changes if they are no more than ``draws``, else so many random ones.
    """
    count = len(gap_N)
    if 2**count <= draws:
        drawn_SN = (np.arange(2**count)[:, None] >> np.arange(count)) % 2 == 1
    else:
        drawn_SN = np.random.default_rng(seed).random((draws, count)) < 0.5
        drawn_SN[0] = False  # the observed signs
    changed_SN = drawn_SN[drawn_SN.any(axis=1)]
    mean_S = np.sort(changed_SN @ (gap_N * weight_N) / (changed_SN @ weight_N)).round(DECIMALS + 2)
    return mean_S, len(drawn_SN) - len(changed_SN)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the given order: p_(i) becomes max over j <= i of min(1, (m - j + 1) p_(j))."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


# Shares and means over clustered observations


@dataclass(frozen=True)
class ClusterBootstrap:
    """Bootstrap draws shared by all numbers of an audit: how often each of S replicates draws each of K clusters."""

    count_SK: Array

    @classmethod
    def draw(cls, cluster_N: Array, *, replicates: int, seed: int) -> ClusterBootstrap:
        """Draw K clusters with replacement, S times; ``cluster_N`` numbers them from 0."""
        clusters = int(cluster_N.max()) + 1
        chance = np.full(clusters, 1.0 / clusters)
        return cls(np.random.default_rng(seed).multinomial(clusters, chance, size=replicates).astype(np.float64))

    @property
    def clusters(self) -> int:
        return int(self.count_SK.shape[1])

    def replicate_ratios(self, above_K: Array, below_K: Array) -> Array:
        """[S, ...] ``sum_k n_k above_k / sum_k n_k below_k`` of every replicate; NaN where the denominator is 0.

        All are NaN of a single cluster: its replicates are equal, and say nothing of another one. The shapes [K, ...]
        of numerators and denominators broadcast.
        """
        above, below = (np.tensordot(self.count_SK, each.astype(np.float64), axes=1) for each in (above_K, below_K))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where((below > 0) & (self.clusters > 1), above / below, np.nan)

    def ratio(self, above_N: Array, below_N: Array, cluster_N: Array) -> Share:
        """``sum(above) / sum(below)`` over the first axis with its interval; NaN where the denominator is 0."""
        above_K, below_K = (cluster_totals(each, cluster_N, self.clusters) for each in (above_N, below_N))
        with np.errstate(invalid="ignore", divide="ignore"):
            value = np.asarray(above_N).sum(axis=0) / np.asarray(below_N).sum(axis=0)
        return {"value": value} | percentile_interval(self.replicate_ratios(above_K, below_K))

    def mean(self, value_N: Array, among_N: Array, cluster_N: Array) -> Share:
        """Mean of the values that ``among_N`` (bool) selects, each with equal weight."""
        chosen = value_N[among_N].astype(np.float64)
        return self.ratio(chosen, np.ones_like(chosen), cluster_N[among_N]) | {"of": len(chosen)}


def clusters_of(asked: Sequence[Hashable]) -> Array:
    """Numbers from 0 of observations, equal where what they ask is equal."""
    numbers: dict[Hashable, int] = {}
    return np.asarray([numbers.setdefault(each, len(numbers)) for each in asked])


def percentile_interval(replicates_S: Array) -> dict[str, Array]:
    """``low`` and ``high`` of the 95 % percentile interval over the first axis, NaN where no replicate has a value."""
    empty = ~np.isfinite(replicates_S).any(axis=0)
    some = np.where(empty, 0.0, replicates_S)  # keeps an all-NaN column from warning
    low, high = np.nanquantile(some, QUANTILES, axis=0)
    return {"low": np.where(empty, np.nan, low)[()], "high": np.where(empty, np.nan, high)[()]}


def cluster_totals(value_N: Array, cluster_N: Array, clusters: int) -> Array:
    """[K, ...] sum of the values [N, ...] of each cluster."""
    total_K = np.zeros((clusters, *value_N.shape[1:]))
    np.add.at(total_K, cluster_N, value_N)
    return total_K
