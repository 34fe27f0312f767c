"""Where each scored token's logits stand in a micro-batch: padded rows, packed sequences, context-parallel shards.

Shape legend: B = responses of a micro-batch, S = tokens of prompt and response (padded), N = scored here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.nemo.shift import predicted_token


@dataclass(frozen=True)
class MicroBatch:
    """Token ids of a micro-batch and how its logits are laid out.

    Attributes:
        ids_BS: [B, S] prompt and response, right-padded.
        lengths_B: [B] real tokens of each row.
        starts: [B + 1] where each sequence begins in the packed logits, padding included; None when padded rows.
    """

    ids_BS: Tensor
    lengths_B: Tensor
    starts: Tensor | None


@dataclass(frozen=True)
class Scored:
    """The N predictions whose logits this rank holds.

    Attributes:
        logits_row_N: row of each in the logits, flattened over batch and sequence.
        batch_N: response of each.
        column_N: predicting position t of each; the token it predicts is at t + 1.
        target_N: that token.
    """

    logits_row_N: Tensor
    batch_N: Tensor
    column_N: Tensor
    target_N: Tensor


def scored_predictions(micro: MicroBatch, logits_columns: int, *, cp_rank: int, cp_size: int) -> Scored:
    """Every prediction of a real token whose logits are on this rank.

    Args:
        micro: the micro-batch.
        logits_columns: second dimension of the logits.
        cp_rank: place of this rank among the context-parallel ranks.
        cp_size: number of context-parallel ranks.
    """
    target_BS1 = predicted_token(micro.ids_BS)
    position_S1 = torch.arange(target_BS1.shape[1], device=target_BS1.device)
    real_BS1 = position_S1.unsqueeze(0) < (micro.lengths_B - 1).unsqueeze(1)
    batch_N, column_N = real_BS1.nonzero(as_tuple=True)
    if micro.starts is None:
        row_N, here_N = batch_N * logits_columns + column_N, torch.ones_like(batch_N, dtype=torch.bool)
    else:
        row_N, here_N = _packed_row(micro.starts, batch_N, column_N, cp_rank=cp_rank, cp_size=cp_size)
    batch_N, column_N = batch_N[here_N], column_N[here_N]
    return Scored(row_N[here_N], batch_N, column_N, target_BS1[batch_N, column_N])


def _packed_row(
    starts: Tensor, batch_N: Tensor, column_N: Tensor, *, cp_rank: int, cp_size: int
) -> tuple[Tensor, Tensor]:
    """Row in this rank's packed logits, and whether the position is on this rank at all.

    A sequence of padded length L is cut into 2 cp_size equal pieces; rank r holds pieces r and 2 cp_size - 1 - r, side
    by side, so that causal attention costs every rank the same.
    """
    starts = starts.to(batch_N)
    begin_N = starts[batch_N]
    if cp_size == 1:
        return begin_N + column_N, torch.ones_like(batch_N, dtype=torch.bool)
    piece_N = (starts[batch_N + 1] - begin_N) // (2 * cp_size)
    index_N, inside_N = column_N // piece_N, column_N % piece_N
    first_N, second_N = index_N == cp_rank, index_N == 2 * cp_size - 1 - cp_rank
    row_N = begin_N // cp_size + inside_N + torch.where(second_N, piece_N, 0)
    return row_N, first_N | second_N
