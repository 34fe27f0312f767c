"""Turn labels of sampled tokens, for the method that weighs turns. Shape legend: B = responses, S = tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def turn_labels(ids_BS: Tensor, mask_BS: Tensor, separator: str, tokenizer: Any) -> Tensor:
    """[B, S] turn of each sampled token: a token whose text contains ``separator`` ends its turn."""
    labels_BS = torch.zeros(ids_BS.shape, dtype=torch.long)
    texts: dict[int, str] = {}
    for row in range(ids_BS.shape[0]):
        turn = 0
        for column in mask_BS[row].nonzero().flatten().tolist():
            token = int(ids_BS[row, column])
            if token not in texts:
                texts[token] = tokenizer.decode([token])
            labels_BS[row, column] = turn
            turn += separator in texts[token]
    return labels_BS
