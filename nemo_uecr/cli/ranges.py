"""Whole numbers of the command line with a least value."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["whole_from"]


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
