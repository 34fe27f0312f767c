"""Reduction of logits to statistics with plain torch, a few rows at a time in two reused float32 buffers.

Legend: N tokens, V vocabulary columns of this shard, W statistics a token, C rows of one block.

Every row goes through the same sequence of operations whatever the number of rows and of threads, so a row's
statistics do not depend on how the tokens were batched.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.scoring.records import MAX_ROW, TARGET_ROW, StatisticsLayout

BLOCK_ELEMENTS = 1 << 17
"""Elements of one float32 buffer: 512 KiB, so that both stay in a second-level cache."""
EXP_UNDERFLOW = -104.0
"""exp of this is 0 in float32: a -inf logit moved here weighs nothing and stays a number."""
ONE_ROW_COLUMNS = 1 << 15
"""From this width on a block is one row, summed piece by piece: torch would split the sum of a single long row
over threads, and the bits of that sum would depend on their number and on the rows beside it."""
PIECE_COLUMNS = 1 << 12


def rows_per_block(columns: int) -> int:
    """How many rows of `columns` logits one block takes."""
    return 1 if columns >= ONE_ROW_COLUMNS else max(1, BLOCK_ELEMENTS // columns)


def reduce_with_torch(logits_NV: Tensor, layout: StatisticsLayout, stats_WN: Tensor) -> None:
    """Write the max, the exponential sums and the weighted sum of each row into `stats_WN`.

    Args:
        logits_NV: `[N, V]` float logits, padding columns already sliced off, V >= 1.
        layout: which statistics to write, and where.
        stats_WN: `[W, N]` float32, written in place except for the target's row.
    """
    tokens, columns = logits_NV.shape
    rows = min(tokens, rows_per_block(columns))
    shifted_CV = torch.empty(rows, columns, dtype=torch.float32, device=logits_NV.device)
    exp_CV = torch.empty_like(shifted_CV)
    for start in range(0, tokens, rows):
        stop = min(start + rows, tokens)
        block_CV = logits_NV[start:stop]
        _reduce_block(block_CV, layout, stats_WN[:, start:stop], shifted_CV[: stop - start], exp_CV[: stop - start])
    _settle_infinities(logits_NV, layout, stats_WN)


def _reduce_block(
    block_CV: Tensor, layout: StatisticsLayout, stats_WC: Tensor, shifted_CV: Tensor, exp_CV: Tensor
) -> None:
    shifted_CV.copy_(block_CV)
    max_C = stats_WC[MAX_ROW]
    torch.amax(shifted_CV, 1, out=max_C)
    shifted_CV.sub_(max_C.unsqueeze(1))
    for temperature in layout.sum_temperatures:
        if temperature == 1.0:
            torch.exp(shifted_CV, out=exp_CV)
        else:
            torch.div(shifted_CV, temperature, out=exp_CV).exp_()
        _sum_rows(exp_CV, stats_WC[layout.sum_row(temperature)])
        if temperature == 1.0 and layout.entropy:
            _sum_rows(exp_CV.mul_(shifted_CV), stats_WC[layout.weighted_row])


def _sum_rows(values_CV: Tensor, sum_C: Tensor) -> None:
    columns = values_CV.shape[1]
    if columns < ONE_ROW_COLUMNS:
        torch.sum(values_CV, 1, out=sum_C)
        return
    whole = columns // PIECE_COLUMNS * PIECE_COLUMNS
    pieces_CP = values_CV[:, :whole].view(values_CV.shape[0], -1, PIECE_COLUMNS).sum(2)  # C is 1 here
    torch.sum(pieces_CP, 1, out=sum_C)
    sum_C += values_CV[:, whole:].sum(1)


def _settle_infinities(logits_NV: Tensor, layout: StatisticsLayout, stats_WN: Tensor) -> None:
    """Make -inf logits weigh exactly nothing: 0 * -inf in the weighted sum, and rows with no finite logit."""
    max_N = stats_WN[MAX_ROW]
    empty_N = max_N == -torch.inf
    stats_WN[TARGET_ROW + 1 :].masked_fill_(empty_N, 0.0)
    if not layout.entropy:
        return
    undefined_N = stats_WN[layout.weighted_row].isnan() & max_N.isfinite()
    for token in undefined_N.nonzero().flatten().tolist():
        shifted_V = (logits_NV[token].float() - max_N[token]).clamp_(min=EXP_UNDERFLOW)
        stats_WN[layout.weighted_row, token] = (shifted_V.exp() * shifted_V).sum()
