"""Numbers of tables as text: rounded half away from zero, on the decimal that the number means."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal

#: Decimals to which sums in floating point are trusted; a mean of 45.625 may come out as 45.62499999999999.
TRUSTED = 9
#: More digits than the largest number in floating point has before its point.
_DIGITS = Context(prec=400)


def rounded(value: float, decimals: int, *, sign: str) -> str:
    """A number as a table prints it.

    Args:
        value: what to print.
        decimals: how many to keep.
        sign: "+" to show the sign of positive numbers too, "" otherwise.
    """
    if not math.isfinite(value):
        return f"{value:{sign}.{decimals}f}"
    kept = Decimal(repr(round(value, TRUSTED))).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, _DIGITS)
    return f"{kept if kept else abs(kept):{sign}.{decimals}f}"  # no minus before a zero
