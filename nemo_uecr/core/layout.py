"""Cuts token tensors into blocks that stay in cache, padded and packed alike.

Shape legend: B = responses, T = tokens, b x t = one block.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

#: Tokens in one block. On CPU the temporaries of a block stay in the second-level cache; a GPU wants few launches.
CPU_BLOCK_TOKENS = 65_536
GPU_BLOCK_TOKENS = 16_777_216


@dataclass(frozen=True)
class Block:
    """A rectangle of responses ``rows`` by the columns in which any of them has a sampled token."""

    rows: slice
    index: slice | tuple[slice, slice]
    packed: bool

    def of(self, tokens: Tensor) -> Tensor:
        """The [b, t] view of a [B, T] or packed [N] tensor."""
        view = tokens[self.index]
        return view.unsqueeze(0) if self.packed else view


def cut(mask_BT: Tensor, offsets: Tensor | None) -> tuple[Block, ...]:
    """Blocks that cover every sampled token once, trimmed to the columns in use.

    Args:
        mask_BT: [B, T] bool, or [N] when packed.
        offsets: [B + 1] token offsets of a packed batch; None when padded.
    """
    if offsets is not None:
        ends = itertools.pairwise(offsets.tolist())
        return tuple(Block(slice(row, row + 1), slice(*span), packed=True) for row, span in enumerate(ends))
    responses = mask_BT.shape[0]
    blocks = []
    budget = CPU_BLOCK_TOKENS if mask_BT.device.type == "cpu" else GPU_BLOCK_TOKENS
    height = max(1, budget // max(1, mask_BT.shape[1]))
    for start in range(0, responses, height):
        rows = slice(start, min(start + height, responses))
        used = mask_BT[rows].view(torch.uint8).amax(dim=0).nonzero()
        columns = slice(int(used[0]), int(used[-1]) + 1) if used.numel() else slice(0, 0)
        blocks.append(Block(rows, (rows, columns), packed=False))
    return tuple(blocks)
