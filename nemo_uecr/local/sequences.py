"""Prompt and response of each row as the forward pass reads them, in the micro-batches of the update.

Shape legend: B = responses, T = response tokens (padded), S = prompt and response tokens (padded), N = response tokens
of one micro-batch in a flat list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.local.prompts import Prompt
from nemo_uecr.local.rollout import Response


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass.

    Attributes:
        ids_bS: right-padded prompt and response; what stands in the padding is never attended to by a sampled token.
        position_N: index into the flattened [b * S] features from which each response token is predicted.
        target_N: the response tokens.
        mask_bT: where each of them stands in the [B, T] layout.
    """

    ids_bS: Tensor
    position_N: Tensor
    target_N: Tensor
    mask_bT: Tensor


@dataclass(frozen=True)
class Sequences:
    """A step's prompts and responses, aligned row by row."""

    prompts: Sequence[Prompt]
    responses: Sequence[Response]

    @property
    def width(self) -> int:
        """T: tokens of the longest response."""
        return max(len(response.token_ids) for response in self.responses)

    def token_ids(self) -> Tensor:
        """[B, T] response token ids, 0 in the padding."""
        ids_BT = torch.zeros(len(self.responses), self.width, dtype=torch.long)
        for row, response in enumerate(self.responses):
            ids_BT[row, : len(response.token_ids)] = torch.tensor(response.token_ids)
        return ids_BT

    def mask(self) -> Tensor:
        """[B, T] True on sampled tokens."""
        length_B = torch.tensor([len(response.token_ids) for response in self.responses])
        return torch.arange(self.width).unsqueeze(0) < length_B.unsqueeze(1)

    def micro_batch(self, rows: slice) -> MicroBatch:
        """The rows as one right-padded forward pass."""
        pairs = list(zip(self.prompts[rows], self.responses[rows], strict=True))
        width = max(len(prompt.token_ids) + len(response.token_ids) for prompt, response in pairs)
        ids_bS = torch.zeros(len(pairs), width, dtype=torch.long)
        positions, targets = [], []
        for row, (prompt, response) in enumerate(pairs):
            start, length = len(prompt.token_ids), len(response.token_ids)
            ids_bS[row, : start + length] = torch.tensor(prompt.token_ids + response.token_ids)
            positions.append(torch.arange(length) + row * width + start - 1)
            targets.append(torch.tensor(response.token_ids))
        return MicroBatch(ids_bS, torch.cat(positions), torch.cat(targets), self.mask()[rows])


def micro_slices(responses: int, *, minibatch: int, microbatch: int) -> list[list[slice]]:
    """Rows of each micro-batch, one list for each optimizer step. Scoring walks the same slices as the update."""
    return [
        [slice(row, min(row + microbatch, start + minibatch)) for row in range(start, start + minibatch, microbatch)]
        for start in range(0, responses, minibatch)
    ]
