"""Whether two models are the same: the largest difference of their log-probabilities on the fixed sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nemo_uecr.checkpoint.sequences import Scores, Sequences
from nemo_uecr.errors import CheckpointError

TOLERANCE = 1e-4
"""Largest difference in nats that counts as rounding: both models compute in float32 from the same weights."""


@dataclass(frozen=True)
class Agreement:
    """How far two models are apart.

    Attributes:
        largest: largest absolute difference of two log-probabilities, in nats.
        tokens: number of log-probabilities that were compared.
    """

    largest: float
    tokens: int


def compare(sequences: Sequences, megatron: Scores, other: Scores, tolerance: float, whose: str) -> Agreement:
    """Compare token by token.

    max_t |log p_Megatron(y_t | y_<t) - log p_other(y_t | y_<t)| <= tolerance

    Args:
        sequences: the tokens.
        megatron: log-probabilities in nats from the second token on, under Megatron's model.
        other: the same under the other model.
        tolerance: in nats.
        whose: names the other in the message.

    Returns:
        The agreement.

    Raises:
        CheckpointError: a difference above the tolerance, or a number that is not finite; with its place.
    """
    worst, where, tokens = 0.0, (0, 0), 0
    for row, (ours, theirs) in enumerate(zip(megatron, other, strict=True)):
        for column, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            tokens += 1
            apart = abs(left - right)
            if not math.isfinite(apart):
                raise CheckpointError(f"sequence {row}, token {column + 1}: got {left} and {right}; expected numbers")
            if apart > worst:
                worst, where = apart, (row, column)
    if worst > tolerance:
        row, column = where
        raise CheckpointError(
            f"not the same model: log-probabilities differ by {worst:.3g} nats (tolerance {tolerance:g}) at sequence "
            f"{row}, token {column + 1} ({sequences[row][column + 1]}): Megatron {megatron[row][column]:.6f}, "
            f"{whose} {other[row][column]:.6f}"
        )
    return Agreement(worst, tokens)
