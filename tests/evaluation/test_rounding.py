"""Ties are rounded away from zero, whatever the last bits of a sum are."""

from __future__ import annotations

import pytest

from nemo_uecr.evaluation.rounding import rounded


@pytest.mark.parametrize(
    ("value", "decimals", "sign", "text"),
    [
        (45.625, 2, "", "45.63"),  # exact in binary, where the format of Python goes to the even digit
        (45.62499999999999, 2, "", "45.63"),  # what a sum made of 45.625
        (46.875, 2, "", "46.88"),
        (14.375, 2, "", "14.38"),
        (14.374999, 2, "", "14.37"),
        (-0.25, 1, "+", "-0.3"),
        (0.25, 1, "+", "+0.3"),
        (0.5, 0, "", "1"),
        (2.0, 1, "", "2.0"),
        (-1e-15, 1, "+", "+0.0"),
        (1e-12, 3, "", "0.000"),
        (-0.004, 2, "", "0.00"),  # rounding makes a zero too
        (-0.004, 2, "+", "+0.00"),
        (1e27, 2, "", "1" + 27 * "0" + ".00"),
        (-1.7976931348623157e308, 1, "", "-17976931348623157" + 292 * "0" + ".0"),
        (float("nan"), 1, "", "nan"),
        (float("inf"), 1, "+", "+inf"),
    ],
)
def test_rounded(value: float, decimals: int, sign: str, text: str) -> None:
    assert rounded(value, decimals, sign=sign) == text
