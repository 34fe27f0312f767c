"""pass@k from more samples than k."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from nemo_uecr.errors import DataError


def unbiased_pass_at_k(rewards: Sequence[Sequence[float]], k: int) -> float:
    """Probability that at least one of k samples is correct, averaged over problems.

    pass@k = mean over problems of 1 - C(n - c, k) / C(n, k),   n samples, c of them correct

    Args:
        rewards: one row a problem, n verdicts each (1 correct, 0 not).
        k: from 1 to n.

    Raises:
        DataError: If a row is shorter than k, or there is none.
    """
    if not rewards or k < 1 or any(len(row) < k for row in rewards):
        raise DataError(f"pass@{k} needs at least {max(1, k)} samples of every problem")
    shares = []
    for row in rewards:
        correct = sum(reward > 0 for reward in row)
        shares.append(1.0 - comb(len(row) - correct, k) / comb(len(row), k))
    return sum(shares) / len(shares)
