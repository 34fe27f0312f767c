"""A number whose sum is the largest: how a maximum survives NeMo-RL's summing of metrics over sequences."""

from __future__ import annotations

import math


class Largest(float):
    """A float that adds up to the maximum, so that ``sum`` of several gives the largest.

    NeMo-RL adds every metric over the sequences of a packed micro-batch, starting from 0, except a fixed few.
    """

    def __add__(self, other: float) -> Largest:
        """The larger of the two; NaN where either is, which Python's maximum would lose behind a number."""
        values = float(self), float(other)
        return Largest(math.nan if any(map(math.isnan, values)) else max(values))

    __radd__ = __add__
