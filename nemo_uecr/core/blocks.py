"""Walks over token tensors in blocks that stay in cache, padded and packed alike.

Shape legend: B = responses, T = tokens, b x t = one block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.errors import ScoreError

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


def token_blocks(batch: ScoredBatch) -> Iterator[Block]:
    """Blocks that cover every sampled token once, trimmed to the columns in use.

    Raises:
        ScoreError: If a response has no sampled token at all.
    """
    if batch.offsets is not None:
        yield from _packed_blocks(batch, batch.offsets)
        return
    mask_BT = batch.mask_BT
    budget = CPU_BLOCK_TOKENS if mask_BT.device.type == "cpu" else GPU_BLOCK_TOKENS
    height = max(1, budget // max(1, mask_BT.shape[1]))
    for start in range(0, batch.responses, height):
        rows = slice(start, min(start + height, batch.responses))
        used = mask_BT[rows].any(dim=0).nonzero()
        if used.numel() == 0:
            raise_empty(batch, start)
        yield Block(rows, (rows, slice(int(used[0]), int(used[-1]) + 1)), packed=False)


def _packed_blocks(batch: ScoredBatch, offsets: Tensor) -> Iterator[Block]:
    ends = offsets.tolist()
    for row, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
        if start == end:
            raise_empty(batch, row)
        yield Block(slice(row, row + 1), slice(start, end), packed=True)


def raise_empty(batch: ScoredBatch, row: int) -> None:
    """Report a response without any sampled token."""
    raise ScoreError(
        f"{batch.name_of(row)} has no sampled token; expected at least one (an immediate end token counts). "
        "Drop the prompt's whole group or sample it again"
    )


def token_counts(batch: ScoredBatch) -> Tensor:
    """[B] float64 number of sampled tokens, at least 1 each.

    Raises:
        ScoreError: If a response has none.
    """
    counts = torch.empty(batch.responses, dtype=torch.float64, device=batch.mask_BT.device)
    for block in token_blocks(batch):
        counts[block.rows] = block.of(batch.mask_BT).sum(dim=1).to(torch.float64)
    empty = (counts == 0).nonzero()
    if empty.numel():
        raise_empty(batch, int(empty[0]))
    return counts


def check_finite(batch: ScoredBatch, block: Block, row_sums_b: Tensor, fields: tuple[str, ...]) -> None:
    """Raise when a row sum is not finite, naming sample, position and field.

    A float64 sum of float32 values is finite exactly when every value is, so the usual case costs no extra pass.
    """
    if bool(row_sums_b.isfinite().all()):
        return
    mask = block.of(batch.mask_BT)
    for field in fields:
        bad = (~block.of(getattr(batch, f"{field}_BT")).isfinite() & mask).nonzero()
        if bad.numel():
            row, column = int(bad[0, 0]), int(bad[0, 1])
            value = float(block.of(getattr(batch, f"{field}_BT"))[row, column])
            first = block.index[1].start if isinstance(block.index, tuple) else 0
            raise ScoreError(
                f"{field} of {batch.name_of(block.rows.start + row)} at token {first + column} is {value}; expected a "
                "finite number of nats. Score the response again; scores are never filled in"
            )
    raise ScoreError(f"scores of {batch.name_of(block.rows.start)} overflow when summed; expected finite nats")
