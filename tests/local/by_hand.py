"""Scores by a float64 forward pass of one sequence at a time."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from nemo_uecr.local.sequences import Sequences
from nemo_uecr.local.token_model import TokenModel


def by_hand(
    model: TokenModel, sequences: Sequences, temperature: float, *, columns: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """From the model's own logits in float64, one row at a time, no padding.

    Returns:
        [B, T] log-probability at the temperature over the first ``columns``, entropy, and mass of the other columns,
        both at temperature 1; NaN beyond each response.
    """
    module = copy.deepcopy(model.module).double()
    shape = len(sequences.responses), sequences.width
    logp, entropy, dropped = (torch.full(shape, math.nan, dtype=torch.float64) for _ in range(3))
    for row, (prompt, response) in enumerate(zip(sequences.prompts, sequences.responses, strict=True)):
        ids = torch.tensor([prompt.token_ids + response.token_ids])
        with torch.no_grad():
            whole = module(input_ids=ids).logits[0, len(prompt.token_ids) - 1 : -1].double()
        logits = whole[:, :columns]
        chosen = torch.tensor(response.token_ids).unsqueeze(1)
        length = len(response.token_ids)
        logp[row, :length] = (logits / temperature).log_softmax(-1).gather(1, chosen)[:, 0]
        p = logits.softmax(-1)
        entropy[row, :length] = -(p * p.log()).sum(-1)
        dropped[row, :length] = 1.0 - whole.softmax(-1)[:, :columns].sum(-1)
    return logp, entropy, dropped


def worst(found: Tensor, expected: Tensor, mask_BT: Tensor) -> float:
    return float((found.double() - expected)[mask_BT].abs().max())
