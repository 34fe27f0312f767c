"""When the teacher's weight overturns the verifier: utilities, ordering conflicts and tie points of mixed groups.

Shape legend: G = mixed groups, C = correct and W = incorrect responses of one group, A = values of alpha.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Array = np.ndarray

#: Utilities closer than this are tied (the paper's tolerance).
TIE = 1e-6


def conflict_rate(correct_C: Array, wrong_W: Array, alpha_A: Array) -> Array:
    """[A] share of pairs whose incorrect response has the higher utility.

    ``C_g(alpha) = mean_{c, w} 1[alpha R_w > 1 + alpha R_c + 1e-6]``

    Args:
        correct_C: [C] R^T of the correct responses.
        wrong_W: [W] R^T of the incorrect responses.
        alpha_A: [A] coefficients.

    References:
        eq:app-alpha-audit-conflict, eq:app-alpha-audit-utility.
    """
    utility_AC = 1.0 + alpha_A[:, None] * correct_C
    utility_AW = alpha_A[:, None] * wrong_W
    rate_A: Array = (utility_AW[:, :, None] > utility_AC[:, None, :] + TIE).mean(axis=(1, 2))
    return rate_A


def margin(correct_C: Array, wrong_W: Array, alpha_A: Array) -> Array:
    """[A] ``M_g(alpha) = min_c U_c - max_w U_w``; the group is fully safe where it exceeds the tie tolerance."""
    lowest_A = (1.0 + alpha_A[:, None] * correct_C).min(axis=1)
    highest_A = (alpha_A[:, None] * wrong_W).max(axis=1)
    margin_A: Array = lowest_A - highest_A
    return margin_A


def tie_point(correct_C: Array, wrong_W: Array) -> float:
    """``alpha*_g = 1 / (max_w R_w - min_c R_c)``, infinite where that difference is not positive.

    References:
        eq:app-alpha-audit-threshold.
    """
    difference = float(wrong_W.max() - correct_C.min())
    return 1.0 / difference if difference > 0 else float("inf")


def first_alpha(tie_G: Array, share: float) -> float:
    """Smallest alpha at which at least this share of groups holds an inversion; infinite where there is none.

    A group holds one beyond its tie point, so it is the tie point of the group that completes the share.
    """
    needed = int(np.ceil(share * len(tie_G) - 1e-9))
    return float(np.sort(tie_G)[needed - 1])


def grid_mismatches(tie_G: Array, safe_GA: Array, inverted_GA: Array, alpha_A: Array) -> int:
    """Grid values at which a group's state is not the one its tie point foretells.

    ``safe`` holds for ``alpha < alpha* (1 - 1e-6)``, ``inverted`` for ``alpha > alpha* (1 + 1e-6)``; within the
    tolerance, a few roundings wide, either is right.
    """
    below_GA = alpha_A[None, :] < tie_G[:, None] * (1.0 - 2.0 * TIE)
    above_GA = alpha_A[None, :] > tie_G[:, None] * (1.0 + 2.0 * TIE)
    wrong_GA = (below_GA & (~safe_GA | inverted_GA)) | (above_GA & (safe_GA | ~inverted_GA))
    return int(wrong_GA.sum())


def quantile(tie_G: Array, share: float) -> float:
    """Smallest tie point that at least this share of groups does not exceed; no value between two is made up."""
    return float(np.quantile(tie_G, share, method="inverted_cdf"))


def sweep_grid(points: Sequence[float], top: float, dense: int) -> Array:
    """Explicit operating points together with an even grid over [0, top]."""
    return np.unique(np.concatenate([np.asarray(points, dtype=np.float64), np.linspace(0.0, top, dense)]))
