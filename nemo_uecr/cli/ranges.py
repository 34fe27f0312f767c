"""Whole numbers of the command line with a least value, or also a largest one."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["whole_between", "whole_from"]


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
