"""Numbers of the command line with a range: whole ones with a least value or two bounds, and any between two bounds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["number_between", "whole_between", "whole_from"]


def whole_from(least: int) -> Callable[[str], int]:
    """A type for argparse: a whole number that is not below ``least``."""
    return lambda text: _whole(text, least, None)


def number_between(low: float, high: float) -> Callable[[str], float]:
    """A type for argparse: a number that is not outside two bounds, which NaN is."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a number from {low:g} to {high:g}")
        return number

    return parse


def whole_between(least: int, most: int) -> Callable[[str], int]:
    """A type for argparse: a whole number that is neither below ``least`` nor above ``most``."""
    return lambda text: _whole(text, least, most)


def _whole(text: str, least: int, most: int | None) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        limit = "" if most is None else f" to {most}"
        raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected a whole number from {least}{limit}")
    return number
