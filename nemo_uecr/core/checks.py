"""Checks of a batch's tokens, block by block: none of a response missing, none of a score not finite.

Shape legend: B = responses, T = tokens, b x t = one block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.core.layout import Block
from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.errors import ScoreError


def token_counts(batch: ScoredBatch) -> Tensor:
    """[B] float64 number of sampled tokens, at least 1 each.

    Raises:
        ScoreError: If a response has none.
    """
    counts = torch.empty(batch.responses, dtype=torch.float64, device=batch.mask_BT.device)
    for block in batch.blocks:
        counts[block.rows] = block.of(batch.mask_BT).sum(dim=1).to(torch.float64)
    empty = (counts == 0).nonzero()
    if empty.numel():
        raise ScoreError(
            f"{batch.name_of(int(empty[0]))} has no sampled token; expected at least one (an immediate end token "
            "counts). Drop the prompt's whole group or sample it again"
        )
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
    row = int((~row_sums_b.isfinite()).nonzero()[0])
    raise ScoreError(f"scores of {batch.name_of(block.rows.start + row)} overflow when summed; expected finite nats")
