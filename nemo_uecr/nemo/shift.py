"""The one-token shift, here and nowhere else.

The logits at position t predict the token at t + 1. Every stored score stands at the token it scores: column t of a
[B, S] score belongs to ``ids[t]``, and column 0 is 0, because nothing predicts the first token.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

import torch
from torch import Tensor

#: What a stored score says about itself in the score contract.
CONVENTION = "column t scores token t"


def predicted_token(ids_BS: Tensor) -> Tensor:
    """[B, S - 1] the token that the logits at each position predict."""
    return ids_BS[:, 1:]


def at_scored_token(prediction_BS: Tensor) -> Tensor:
    """[B, S] values of the S - 1 predicting positions, moved to the tokens they score; column 0 is 0."""
    return torch.cat((torch.zeros_like(prediction_BS[:, :1]), prediction_BS), dim=1)


def at_predicting_position(column_BS: Tensor) -> Tensor:
    """[B, S - 1] a stored column as the loss reads it: beside the logits that predict the token."""
    return column_BS[:, 1:]
