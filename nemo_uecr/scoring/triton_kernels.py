"""Triton kernel of the logits pass. `reduce.py` imports it for the first GPU tensor, where Triton is installed.

Triton looks `tl` up among the globals of the kernel's module, so it is imported here and not inside a function.

Legend: N tokens, V vocabulary columns of this shard, W statistics a token.

One program reduces one row. It reads the row once, a block of columns at a time, with one cross-lane reduction
a block, for the block's maximum; the sums stay in lanes until the end of the row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nemo_uecr.scoring.records import StatisticsLayout

LARGEST_BLOCK = 8192
ABSENT = -1


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_row(  # type: ignore[no-untyped-def]
    logits,
    target,
    stats,
    row_stride,
    stats_stride,
    columns,
    first_column,
    inverse_temperature,
    ONE_ROW: tl.constexpr,
    OTHER_ROW: tl.constexpr,
    WEIGHTED_ROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    row = logits + token * row_stride
    lanes = tl.arange(0, BLOCK)
    largest = -float("inf")
    one = tl.zeros([BLOCK], tl.float32)
    other = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        z = tl.load(row + start + lanes, mask=start + lanes < columns, other=-float("inf")).to(tl.float32)
        raised = tl.maximum(largest, tl.max(z, 0))
        anchor = tl.where(raised == -float("inf"), 0.0, raised)  # all masked so far: any finite number will do
        fall = tl.where(largest == -float("inf"), 0.0, largest - anchor)
        d = z - anchor
        if ONE_ROW >= 0:
            # A drop that float32 cannot hold weighs 0 like any of -1e30, but times 0 it would be NaN. Only here,
            # at temperature 1: divided by a temperature of 1e30 a drop of -1e30 is but -1.
            drop = tl.maximum(fall, -1e30)
            kept = tl.exp(drop)
            e = tl.exp(d)
            if WEIGHTED_ROW >= 0:
                term = tl.where(d == -float("inf"), 0.0, d * e)  # a masked column weighs 0, not 0 * inf
                weighted = (weighted + drop * one) * kept + term
            one = one * kept + e
        if OTHER_ROW >= 0:
            other = other * tl.exp(fall * inverse_temperature) + tl.exp(d * inverse_temperature)
        largest = raised
    tl.store(stats + token, largest)
    column = tl.load(target + token) - first_column
    owned = (column >= 0) & (column < columns)
    y = tl.load(row + tl.where(owned, column, 0), mask=owned, other=-float("inf")).to(tl.float32)
    tl.store(stats + stats_stride + token, y)
    if ONE_ROW >= 0:
        tl.store(stats + ONE_ROW * stats_stride + token, tl.sum(one, 0))
    if OTHER_ROW >= 0:
        tl.store(stats + OTHER_ROW * stats_stride + token, tl.sum(other, 0))
    if WEIGHTED_ROW >= 0:
        tl.store(stats + WEIGHTED_ROW * stats_stride + token, tl.sum(weighted, 0))


def reduce_with_triton(
    logits_NV: Tensor, target_N: Tensor, layout: StatisticsLayout, first_column: int, stats_WN: Tensor
) -> None:
    """Write all statistics of each row, the target's logit included, into `stats_WN`.

    Both are contiguous in their last dimension. The logits are read once, and once more for each temperature beyond
    1 and one other.
    """
    tokens, columns = logits_NV.shape
    target_N = target_N.contiguous()  # the kernel reads them with stride 1
    block = min(LARGEST_BLOCK, triton.next_power_of_2(columns))
    has_one = 1.0 in layout.sum_temperatures
    others = [t for t in layout.sum_temperatures if t != 1.0]
    for index, temperature in enumerate(others or [1.0]):
        first = index == 0
        _reduce_row[(tokens,)](
            logits_NV,
            target_N,
            stats_WN,
            logits_NV.stride(0),
            stats_WN.stride(0),
            columns,
            first_column,
            1.0 / temperature,
            ONE_ROW=layout.sum_row(1.0) if has_one and first else ABSENT,
            OTHER_ROW=layout.sum_row(temperature) if others else ABSENT,
            WEIGHTED_ROW=layout.weighted_row if layout.entropy and first else ABSENT,
            BLOCK=block,
            num_warps=8 if block >= 4096 else 4,
        )
