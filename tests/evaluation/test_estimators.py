"""pass@k against hand values, NeMo-RL's product form, and enumeration."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.estimators import unbiased_pass_at_k
from nemo_uecr.evaluation.metrics import average_at_k, pass_at_k


def product_form(row: list[float], k: int) -> float:
    """1 - Π_{i = n-c+1..n} (1 - k/i), the form of NeMo-RL's run_eval."""
    n, c = len(row), int(sum(row))
    if n - c < k:
        return 1.0
    return 1.0 - float(np.prod([1.0 - k / i for i in range(n - c + 1, n + 1)]))


def test_hand_values() -> None:
    rows = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    assert unbiased_pass_at_k(rows, 1) == pytest.approx(0.125)  # (1/4 + 0)/2
    assert unbiased_pass_at_k(rows, 2) == pytest.approx(0.25)  # (1 - C(3,2)/C(4,2))/2 = (1 - 3/6)/2
    assert unbiased_pass_at_k(rows, 4) == pytest.approx(0.5)


@pytest.mark.parametrize("k", [1, 2, 5, 12])
@pytest.mark.parametrize("correct", [0, 1, 5, 11, 12])
def test_against_the_product_form_and_every_subset(k: int, correct: int) -> None:
    row = [1.0] * correct + [0.0] * (12 - correct)
    subsets = list(combinations(row, k))
    assert unbiased_pass_at_k([row], k) == pytest.approx(sum(any(each) for each in subsets) / len(subsets), abs=1e-12)
    assert unbiased_pass_at_k([row], k) == pytest.approx(product_form(row, k), abs=1e-12)


def test_the_ends_are_avg_and_any_correct() -> None:
    rows = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert unbiased_pass_at_k(rows, 1) == pytest.approx(average_at_k(rows))
    assert unbiased_pass_at_k(rows, 3) == pytest.approx(pass_at_k(rows))


def test_too_few_samples() -> None:
    with pytest.raises(DataError, match="at least 3"):
        unbiased_pass_at_k([[1.0, 0.0]], 3)
