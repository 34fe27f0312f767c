"""Logits to statistics, a row at a time: with Triton on a GPU, with C on a CPU that has it, else with plain torch.

Legend: N tokens, V vocabulary columns of this shard, W statistics per token, C rows of one block.

Every row goes through the same sequence of operations whatever the number of rows and of threads, so a row's
statistics do not depend on how the tokens were batched.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from nemo_uecr.scoring.native import reduce_natively
from nemo_uecr.scoring.records import MAX_ROW, TARGET_ROW, StatisticsLayout

BLOCK_ELEMENTS = 1 << 17
"""Elements of one float32 buffer: 512 KiB, so that both stay in a second-level cache."""
ONE_ROW_COLUMNS = 1 << 15
"""From this width on a block is one row, summed piece by piece: torch would split the sum of a single long row
over threads, and the bits of that sum would depend on their number and on the rows beside it."""
PIECE_COLUMNS = 1 << 12
HAS_TRITON = find_spec("triton") is not None
#: Triton's interpreter runs the kernels on a CPU, slowly: for tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def triton_serves(tensor: Tensor) -> bool:
    """Whether the Triton kernels take this tensor."""
    return HAS_TRITON and (tensor.is_cuda or INTERPRETED)


def reduce_logits(logits_NV: Tensor, target_N: Tensor, layout: StatisticsLayout, first_column: int) -> Tensor:
    """The `[W, N]` float32 statistics of a shard's real columns, which may be none; column 0 is token `first_column`.

    The targets are token ids of the whole vocabulary; their row is -inf where the target is not in this shard.
    """
    tokens, columns = logits_NV.shape
    stats_WN = torch.empty(layout.width, tokens, dtype=torch.float32, device=logits_NV.device)
    if columns == 0:
        stats_WN.zero_()
        stats_WN[: TARGET_ROW + 1] = -torch.inf
        return stats_WN
    if logits_NV.stride(1) != 1:
        logits_NV = logits_NV.contiguous()
    if triton_serves(logits_NV):
        from nemo_uecr.scoring.triton_kernels import reduce_with_triton  # noqa: PLC0415 (needs Triton)

        with torch.cuda.device_of(logits_NV):  # type: ignore[no-untyped-call]
            reduce_with_triton(logits_NV, target_N, layout, first_column, stats_WN)
        return stats_WN
    if not reduce_natively(logits_NV, layout, stats_WN):
        reduce_with_torch(logits_NV, layout, stats_WN)
    column_N = target_N.long() - first_column
    owned_N = (column_N >= 0) & (column_N < columns)
    logit_N = logits_NV.gather(1, column_N.clamp(0, columns - 1).unsqueeze(1)).squeeze(1).float()
    stats_WN[TARGET_ROW] = torch.where(owned_N, logit_N, -torch.inf)
    return stats_WN


def rows_per_block(columns: int) -> int:
    """How many rows of `columns` logits one block takes."""
    return 1 if columns >= ONE_ROW_COLUMNS else max(1, BLOCK_ELEMENTS // columns)


def reduce_with_torch(logits_NV: Tensor, layout: StatisticsLayout, stats_WN: Tensor) -> None:
    """Write the max, the exponential sums and the weighted sum of each row into `stats_WN`, not the target's logit.

    A few rows at a time, in two reused float32 buffers. A long row ends in zeros up to a whole number of pieces.
    """
    tokens, columns = logits_NV.shape
    rows = min(tokens, rows_per_block(columns))
    pieces = -(-columns // PIECE_COLUMNS) if columns >= ONE_ROW_COLUMNS else 0
    shifted = torch.empty(rows, columns, dtype=torch.float32, device=logits_NV.device)
    padded = torch.zeros(rows, pieces * PIECE_COLUMNS or columns, dtype=torch.float32, device=logits_NV.device)
    piece_sums = torch.empty(1, pieces, dtype=torch.float32, device=logits_NV.device)

    def write_sum(sum_C: Tensor) -> None:
        if pieces:  # one row
            torch.sum(padded.view(pieces, PIECE_COLUMNS), 1, out=piece_sums[0])
            torch.sum(piece_sums, 1, out=sum_C)
        else:
            torch.sum(exp_CV, 1, out=sum_C)

    for start in range(0, tokens, rows):
        stats_WC = stats_WN[:, start : start + rows]
        shifted_CV = shifted[: stats_WC.shape[1]].copy_(logits_NV[start : start + rows])
        exp_CV = padded[: stats_WC.shape[1], :columns]
        max_C = stats_WC[MAX_ROW]
        torch.amax(shifted_CV, 1, out=max_C)
        shifted_CV.sub_(max_C.unsqueeze(1))
        for temperature in layout.sum_temperatures:
            if temperature == 1.0:
                torch.exp(shifted_CV, out=exp_CV)
            else:
                torch.div(shifted_CV, temperature, out=exp_CV).exp_()
            write_sum(stats_WC[layout.sum_row(temperature)])
            if temperature == 1.0 and layout.entropy:
                exp_CV.mul_(shifted_CV)
                write_sum(stats_WC[layout.weighted_row])
    _settle_infinities(logits_NV, layout, stats_WN)


def _settle_infinities(logits_NV: Tensor, layout: StatisticsLayout, stats_WN: Tensor) -> None:
    """Make -inf logits weigh exactly nothing: 0 * -inf in the weighted sum, and rows with no finite logit."""
    max_N = stats_WN[MAX_ROW]
    stats_WN[TARGET_ROW + 1 :].masked_fill_(max_N == -torch.inf, 0.0)
    if not layout.entropy:
        return
    undefined_N = stats_WN[layout.weighted_row].isnan() & max_N.isfinite()
    for token in undefined_N.nonzero().flatten().tolist():
        shifted_V = logits_NV[token].float() - max_N[token]
        stats_WN[layout.weighted_row, token] = (shifted_V.exp() * shifted_V).nan_to_num_(nan=0.0).sum()
