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
    buffers = _Buffers(rows, columns, logits_NV.device)
    for start in range(0, tokens, rows):
        stop = min(start + rows, tokens)
        _reduce_block(logits_NV[start:stop], layout, stats_WN[:, start:stop], buffers)
    _settle_infinities(logits_NV, layout, stats_WN)


class _Buffers:
    """The two float32 buffers of a block, and the sum of the rows of one of them.

    A long row ends in zeros up to a whole number of pieces.
    """

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        self.shifted_CV = torch.empty(rows, columns, dtype=torch.float32, device=device)
        pieces = -(-columns // PIECE_COLUMNS) if columns >= ONE_ROW_COLUMNS else 0
        padded = torch.zeros(rows, pieces * PIECE_COLUMNS or columns, dtype=torch.float32, device=device)
        self.exp_CV = padded[:, :columns]
        self._pieces = padded.view(pieces, PIECE_COLUMNS) if pieces else None  # rows is 1
        self._piece_sums = torch.empty(1, pieces, dtype=torch.float32, device=device)

    def sum_exp(self, sum_C: Tensor) -> None:
        """Write the sum of each row of `exp_CV` into `sum_C`."""
        if self._pieces is None:
            torch.sum(self.exp_CV[: sum_C.shape[0]], 1, out=sum_C)
        else:
            torch.sum(self._pieces, 1, out=self._piece_sums[0])
            torch.sum(self._piece_sums, 1, out=sum_C)


def _reduce_block(block_CV: Tensor, layout: StatisticsLayout, stats_WC: Tensor, buffers: _Buffers) -> None:
    shifted_CV, exp_CV = (buffer[: block_CV.shape[0]] for buffer in (buffers.shifted_CV, buffers.exp_CV))
    shifted_CV.copy_(block_CV)
    max_C = stats_WC[MAX_ROW]
    torch.amax(shifted_CV, 1, out=max_C)
    shifted_CV.sub_(max_C.unsqueeze(1))
    for temperature in layout.sum_temperatures:
        if temperature == 1.0:
            torch.exp(shifted_CV, out=exp_CV)
        else:
            torch.div(shifted_CV, temperature, out=exp_CV).exp_()
        buffers.sum_exp(stats_WC[layout.sum_row(temperature)])
        if temperature == 1.0 and layout.entropy:
            exp_CV.mul_(shifted_CV)
            buffers.sum_exp(stats_WC[layout.weighted_row])


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
