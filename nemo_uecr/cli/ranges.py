"""Numbers of the command line with a range: whole ones with a least value or two bounds, and any between two bounds."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

__all__ = ["number_between", "whole_between", "whole_from"]


def whole_from(least: int) -> Callable[[str], int]:
    """A type for argparse: a whole number that is not below ``least``."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from {least}")
        return number

    return parse


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

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"got {text[:40]!r}, expected a whole number from {least} to {most}")
        return number

    return parse
