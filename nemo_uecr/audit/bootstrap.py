"""Problem-clustered bootstrap: all responses to a problem are drawn together, because they are not independent.

Shape legend: K = problems (clusters), S = replicates; statistics may have further axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_uecr.stats import QUANTILES

Array = np.ndarray


@dataclass(frozen=True)
class Resamples:
    """How often each of S replicates draws each of K problems, as float64 [S, K] counts."""

    count_SK: Array

    @classmethod
    def draw(cls, problems: int, *, replicates: int, seed: int) -> Resamples:
        """Draw K problems with replacement, S times."""
        chance = np.full(problems, 1.0 / problems)
        return cls(np.random.default_rng(seed).multinomial(problems, chance, size=replicates).astype(np.float64))

    @property
    def problems(self) -> int:
        """K."""
        return int(self.count_SK.shape[1])

    def ratio(self, numerator_K: Array, denominator_K: Array) -> Array:
        """``sum_k n_k numerator_k / sum_k n_k denominator_k`` of every replicate.

        Args:
            numerator_K: [K, ...] total of each problem.
            denominator_K: [K, ...] weight of each problem, of a shape that broadcasts against the numerator's.

        Returns:
            [S, ...]; NaN where a replicate draws no weight.
        """
        above, below = self._sums(numerator_K), self._sums(denominator_K)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(below > 0, above / below, np.nan)

    def _sums(self, value_K: Array) -> Array:
        flat = self.count_SK @ value_K.reshape(value_K.shape[0], -1).astype(np.float64)
        return flat.reshape(self.count_SK.shape[0], *value_K.shape[1:])


def interval(replicates_S: Array) -> dict[str, Array]:
    """95% percentile interval over the first axis, and how many replicates had a value.

    Returns:
        ``low`` and ``high`` of the remaining shape, NaN where no replicate has a value, and ``replicates``, how many
        have one.
    """
    counted = np.isfinite(replicates_S).sum(axis=0)
    some = np.where(counted > 0, replicates_S, 0.0)  # keeps an all-NaN column from warning
    low, high = np.nanquantile(some, QUANTILES, axis=0)
    empty = counted == 0
    return {"low": np.where(empty, np.nan, low), "high": np.where(empty, np.nan, high), "replicates": counted}


def totals(value_B: Array, cluster_B: Array, clusters: int) -> Array:
    """[K, ...] sum of the values [B, ...] of each cluster."""
    total_K = np.zeros((clusters, *value_B.shape[1:]))
    np.add.at(total_K, cluster_B, value_B)
    return total_K
