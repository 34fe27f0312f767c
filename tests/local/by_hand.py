"""Scores by a float64 forward pass of one sequence at a time."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from nemo_uecr.local.sequences import Sequences
from nemo_uecr.local.token_model import TokenModel


def by_hand(model: TokenModel, sequences: Sequences, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy from the model's own logits in float64, one row at a time, no padding."""
    module = copy.deepcopy(model.module).double()
    logp = torch.full((len(sequences.responses), sequences.width), math.nan, dtype=torch.float64)
    entropy = logp.clone()
    for row, (prompt, response) in enumerate(zip(sequences.prompts, sequences.responses, strict=True)):
        ids = torch.tensor([prompt.token_ids + response.token_ids])
        with torch.no_grad():
            logits = module(input_ids=ids).logits[0, len(prompt.token_ids) - 1 : -1].double()
        chosen = torch.tensor(response.token_ids).unsqueeze(1)
        length = len(response.token_ids)
        logp[row, :length] = (logits / temperature).log_softmax(-1).gather(1, chosen)[:, 0]
        p = logits.softmax(-1)
        entropy[row, :length] = -(p * p.log()).sum(-1)
    return logp, entropy


def worst(found: Tensor, expected: Tensor, mask_BT: Tensor) -> float:
    return float((found.double() - expected)[mask_BT].abs().max())
