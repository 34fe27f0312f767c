"""Token statistics by entropy stratum, token-weighted and response-balanced, with problem-clustered intervals.

Shape legend: B = responses, K = problems, M = strata, N = tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_uecr.audit.bootstrap import Resamples, interval, totals
from nemo_uecr.audit.token_table import TokenTable

Array = np.ndarray
Estimate = dict[str, Array]


def entropy_boundaries(entropy_N: Array, strata: int) -> Array:
    """Upper boundaries of all strata but the last: quantiles that are values of some token, equal ones collapsed.

    Near-deterministic tokens share one entropy, so that low quantiles may coincide: strata, not strict deciles. No
    stratum is empty.
    """
    found = np.unique(np.quantile(entropy_N, np.arange(1, strata) / strata, method="inverted_cdf"))
    below: Array = found[found < entropy_N.max()]
    return below


def stratum_of(entropy_N: Array, boundaries: Array) -> Array:
    """[N] stratum of each token: H in (boundary below, boundary above]."""
    return np.searchsorted(boundaries, entropy_N, side="left")


@dataclass(frozen=True)
class Strata:
    """Where every token belongs, and the draws that the intervals share.

    Attributes:
        stratum_N: [N] stratum.
        response_N: [N] response.
        problem_B: [B] problem of each response, in [0, K).
        count: M.
        resamples: bootstrap draws over the K problems.
    """

    stratum_N: Array
    response_N: Array
    problem_B: Array
    count: int
    resamples: Resamples

    @classmethod
    def of(cls, table: TokenTable, stratum_N: Array, count: int, *, replicates: int, seed: int) -> Strata:
        """Number the problems that are there and draw them."""
        _, problem_B = np.unique(table.problem_B, return_inverse=True)
        resamples = Resamples.draw(int(problem_B.max()) + 1, replicates=replicates, seed=seed)
        return cls(stratum_N, response_numbers(table), problem_B, count, resamples)

    def mean(self, value_N: Array, among_N: Array | None = None) -> dict[str, Estimate]:
        """Mean of a value in each stratum, over chosen tokens.

        Returns:
            ``token_weighted``, every token equal, and ``response_balanced``, the mean within each response first and
            every response with a token there equal; each with ``value``, ``low`` and ``high`` [M].
        """
        return self._both(self._sums(value_N, among_N), self._sums(None, among_N))

    def location(self, among_N: Array) -> dict[str, Estimate]:
        """Share of chosen tokens that lies in each stratum, [M]; token-weighted and response-balanced."""
        size_BM = self._sums(None, among_N)
        return self._both(size_BM, np.broadcast_to(size_BM.sum(axis=1, keepdims=True), size_BM.shape))

    def reduction(self, before_N: Array, after_N: Array, among_N: Array) -> dict[str, Estimate]:
        """``1 - mean(after) / mean(before)`` over chosen tokens of each stratum, [M]."""
        before_BM, after_BM = self._sums(before_N, among_N), self._sums(after_N, among_N)
        length_BM = np.maximum(self._sums(None, among_N), 1)  # a response without such a token has nothing to divide
        return {
            "token_weighted": self._estimate(before_BM - after_BM, before_BM),
            "response_balanced": self._estimate((before_BM - after_BM) / length_BM, before_BM / length_BM),
        }

    def _sums(self, value_N: Array | None, among_N: Array | None) -> Array:
        """[B, M] sum of a value over chosen tokens; their number without a value."""
        cell_N = self.response_N * self.count + self.stratum_N
        if among_N is not None:
            cell_N = cell_N[among_N]
            value_N = None if value_N is None else value_N[among_N]
        responses = len(self.problem_B)
        return np.bincount(cell_N, weights=value_N, minlength=responses * self.count).reshape(responses, self.count)

    def _both(self, total_BM: Array, size_BM: Array) -> dict[str, Estimate]:
        there_BM = size_BM > 0
        with np.errstate(invalid="ignore", divide="ignore"):
            own_BM = np.where(there_BM, total_BM / size_BM, 0.0)
        return {
            "token_weighted": self._estimate(total_BM, size_BM),
            "response_balanced": self._estimate(own_BM, there_BM.astype(np.float64)),
        }

    def _estimate(self, above_BM: Array, below_BM: Array) -> Estimate:
        above_KM, below_KM = (totals(each, self.problem_B, self.resamples.problems) for each in (above_BM, below_BM))
        found = interval(self.resamples.ratio(above_KM, below_KM))
        with np.errstate(invalid="ignore", divide="ignore"):
            value_M = above_KM.sum(axis=0) / below_KM.sum(axis=0)
        return {"value": value_M, "low": found["low"], "high": found["high"]}


def response_numbers(table: TokenTable) -> Array:
    """[N] response of each token."""
    return np.repeat(np.arange(len(table.rows)), np.diff(table.offsets))


def largest(value_N: Array, share: float) -> tuple[Array, float]:
    """[N] bool, the tokens whose value is among the largest share, and the threshold; ties at it are all taken."""
    keep = max(1, round(share * len(value_N)))
    threshold = float(np.partition(value_N, len(value_N) - keep)[len(value_N) - keep])
    among_N: Array = value_N >= threshold
    return among_N, threshold
