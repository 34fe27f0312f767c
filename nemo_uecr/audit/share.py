"""A share or mean over groups with its problem-clustered interval: what most numbers of the audits are.

Shape legend: P = groups, K = problems, S = replicates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nemo_uecr.audit.bootstrap import Resamples, interval, totals

Array = np.ndarray
Share = dict[str, float | int]


@dataclass(frozen=True)
class Sampler:
    """The draws that all numbers of one audit share."""

    resamples: Resamples

    @classmethod
    def draw(cls, problem_P: Array, *, replicates: int, seed: int) -> Sampler:
        """Draw for the problems that the groups name."""
        return cls(Resamples.draw(int(problem_P.max()) + 1, replicates=replicates, seed=seed))

    def mean(self, value_P: Array, among_P: Array, problem_P: Array) -> Share:
        """Mean of a value over chosen groups, each with equal weight.

        Args:
            value_P: [P] value; ignored where ``among_P`` is False.
            among_P: [P] bool, the groups that count.
            problem_P: [P] problem of each group.

        Returns:
            ``value``, ``low``, ``high``, ``of`` (how many groups count); NaN where none does.
        """
        chosen, problem = value_P[among_P].astype(np.float64), problem_P[among_P]
        return self.ratio(chosen, np.ones_like(chosen), problem) | {"of": len(chosen)}

    def ratio(self, above: Array, below: Array, problem: Array) -> Share:
        """``sum(above) / sum(below)`` with its interval; entries are clustered by problem."""
        above_K, below_K = (totals(each, problem, self.resamples.problems) for each in (above, below))
        found = interval(self.resamples.ratio(above_K, below_K))
        weight = float(below.sum())
        value = float(above.sum()) / weight if weight > 0 else float("nan")
        return {"value": value, "low": float(found["low"]), "high": float(found["high"])}


def percent(share: Share) -> str:
    """``41.3 [38.0, 44.9]``, in percent."""
    if not np.isfinite(share["value"]):
        return "-"
    return f"{100 * share['value']:.1f} [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"
