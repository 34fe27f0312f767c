"""Triton kernels of scoring: logits to statistics, statistics to scores, and the gradient of the log-probability.

Triton looks `tl` up among the globals of the kernel's module, so it is imported here and not inside a function.

Legend: N tokens, V vocabulary columns of this shard, W statistics per token, R ranks, K temperatures.

One program reduces one row, a tile of columns at a time. It reads the row once. The sums stay in lanes until the end
of the row, and are then added in float64: the order, which follows from the alignment of the row, is rounded away.
Equal logits have equal bits in scoring and in training.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from nemo_uecr.scoring.records import MAX_ROW, StatisticsLayout

# Shapes of the tiles, fast on an H100 and an H200 alike (benchmarks/kernels.py --sweep).
FORWARD = {"LANES": 512, "STAGES": 3, "num_warps": 2}
BACKWARD = {"BLOCK": 4096, "num_warps": 8}
FINISH_TOKENS = 128
ABSENT = 0
"""Row 0 is the largest logit's."""
#: What changes from call to call. Triton would compile anew where such a number is 1 or becomes a multiple of 16, or
#: a pointer is one. The number of columns is compiled in; of `logits`, `row_stride` it must know whether vectors fit.
VARYING = (
    "target", "stats", "stats_stride", "rank_stride", "first_column", "merged", "logp", "logp_stride", "entropy",
    "all_finite", "tokens", "column", "grad", "grad_stride", "sum_place",
)  # fmt: skip
INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp2(x):  # type: ignore[no-untyped-def]
    """2^x with results below 2^-126 as 0, which saves the three instructions that would scale them."""
    if INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def _is_finite(x):  # type: ignore[no-untyped-def]
    return (x > -float("inf")) & (x < float("inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _rescale(  # type: ignore[no-untyped-def]
    z, largest, anchor, one, other, weighted, scale, ONE: tl.constexpr, OTHER: tl.constexpr, WEIGHTED: tl.constexpr
):
    """Move the sums to the largest logit that is now known. A NaN is not seen here; it stays in the sums."""
    top = tl.max(z, 0)
    if top > largest:  # one answer for the program: most tiles have no larger logit
        fall = largest - top  # -inf at the first, when the sums are 0
        if ONE:
            # A drop that float32 cannot hold weighs 0 like any of -1e30, but times 0 it would be NaN. Only here,
            # at temperature 1: divided by a temperature of 1e30 a drop of -1e30 is but -1.
            drop = tl.maximum(fall, -1e30)
            kept = _exp2(drop * LOG2_E)
            if WEIGHTED:
                weighted = (weighted + drop * one) * kept
            one = one * kept
        if OTHER:
            other = other * _exp2(fall * scale)
        largest = top
        anchor = top
    return largest, anchor, one, other, weighted


@triton.jit  # type: ignore[untyped-decorator]
def _add(  # type: ignore[no-untyped-def]
    z, anchor, one, other, weighted, scale, ONE: tl.constexpr, OTHER: tl.constexpr, WEIGHTED: tl.constexpr
):
    d = z - anchor
    if ONE:
        e = _exp2(d * LOG2_E)
        one += e
        if WEIGHTED:
            weighted += tl.maximum(d, -1e30) * e  # a masked column weighs 0, not -inf * 0
    if OTHER:
        other += _exp2(d * scale)
    return one, other, weighted


@triton.jit(do_not_specialize=VARYING)  # type: ignore[untyped-decorator]
def _reduce_row(  # type: ignore[no-untyped-def]
    logits, target, stats, row_stride, stats_stride, first_column, scale, COLUMNS: tl.constexpr, ONE: tl.constexpr,
    OTHER: tl.constexpr, WEIGHTED: tl.constexpr, LANES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    row = logits + token * row_stride
    lane = tl.arange(0, LANES)
    largest = -float("inf")
    anchor = 0.0  # while all is masked any finite number will do
    one = tl.zeros([LANES], tl.float32)
    other = tl.zeros([LANES], tl.float32)
    weighted = tl.zeros([LANES], tl.float32)
    whole: tl.constexpr = COLUMNS - COLUMNS % (4 * LANES)
    for start in tl.range(0, whole, 4 * LANES, num_stages=STAGES):
        piece = row + start + lane
        a = tl.load(piece)
        b = tl.load(piece + LANES)
        c = tl.load(piece + 2 * LANES)
        d = tl.load(piece + 3 * LANES)
        top = tl.maximum(tl.maximum(a.to(tl.float32), b.to(tl.float32)), tl.maximum(c.to(tl.float32), d.to(tl.float32)))
        largest, anchor, one, other, weighted = _rescale(
            top, largest, anchor, one, other, weighted, scale, ONE, OTHER, WEIGHTED
        )
        one, other, weighted = _add(a.to(tl.float32), anchor, one, other, weighted, scale, ONE, OTHER, WEIGHTED)
        one, other, weighted = _add(b.to(tl.float32), anchor, one, other, weighted, scale, ONE, OTHER, WEIGHTED)
        one, other, weighted = _add(c.to(tl.float32), anchor, one, other, weighted, scale, ONE, OTHER, WEIGHTED)
        one, other, weighted = _add(d.to(tl.float32), anchor, one, other, weighted, scale, ONE, OTHER, WEIGHTED)
    for start in tl.static_range(whole, COLUMNS, LANES):
        z = tl.load(row + start + lane, mask=start + lane < COLUMNS, other=-float("inf")).to(tl.float32)
        largest, anchor, one, other, weighted = _rescale(
            z, largest, anchor, one, other, weighted, scale, ONE, OTHER, WEIGHTED
        )
        one, other, weighted = _add(z, anchor, one, other, weighted, scale, ONE, OTHER, WEIGHTED)
    tl.store(stats + token, largest)
    column = tl.load(target + token) - first_column
    owned = (column >= 0) & (column < COLUMNS)
    y = tl.load(row + tl.where(owned, column, 0), mask=owned, other=-float("inf")).to(tl.float32)
    tl.store(stats + stats_stride + token, y)
    if ONE:
        tl.store(stats + ONE * stats_stride + token, tl.sum(one.to(tl.float64), 0))
    if OTHER:
        tl.store(stats + OTHER * stats_stride + token, tl.sum(other.to(tl.float64), 0))
    if WEIGHTED:
        tl.store(stats + WEIGHTED * stats_stride + token, tl.sum(weighted.to(tl.float64), 0))


@triton.jit(do_not_specialize=VARYING)  # type: ignore[untyped-decorator]
def _finish_tokens(  # type: ignore[no-untyped-def]
    stats, temperatures, merged, logp, entropy, all_finite, rank_stride, stats_stride, logp_stride, tokens,
    RANKS: tl.constexpr, SUMS: tl.constexpr, ASKED: tl.constexpr, ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`merge_shards` and what `scores_by_chunk` makes of it, in float64; row 0 is the largest logit, 1 the target's."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = token < tokens
    largest = tl.full([BLOCK], -float("inf"), tl.float64)
    y = tl.full([BLOCK], -float("inf"), tl.float64)
    for rank in range(RANKS):
        own = stats + rank * rank_stride + token
        largest = tl.maximum(largest, tl.load(own, here, other=0.0).to(tl.float64))
        y = tl.maximum(y, tl.load(own + stats_stride, here, other=0.0).to(tl.float64))
    finite = _is_finite(largest) & _is_finite(y)
    tl.store(merged + token, largest, here)
    tl.store(merged + tokens + token, y, here)
    for index in tl.static_range(SUMS):
        temperature = tl.load(temperatures + index)
        total = tl.zeros([BLOCK], tl.float64)
        weighted = tl.zeros([BLOCK], tl.float64)
        for rank in range(RANKS):
            own = stats + rank * rank_stride + token
            m = tl.load(own, here, other=0.0).to(tl.float64)
            shift = tl.where(m == largest, 0.0, m - largest)  # 0 also for two -inf
            s = tl.load(own + (2 + index) * stats_stride, here, other=1.0).to(tl.float64)
            total += s * tl.exp(shift / temperature)
            if ENTROPY and index == 0:
                t = tl.load(own + (2 + SUMS) * stats_stride, here, other=0.0).to(tl.float64)
                weighted += tl.where(s == 0.0, 0.0, t + shift * s) * tl.exp(shift)
        tl.store(merged + (2 + index) * tokens + token, total, here)
        finite = finite & _is_finite(total)
        if ENTROPY and index == 0:
            tl.store(merged + (2 + SUMS) * tokens + token, weighted, here)
            tl.store(entropy + token, (tl.log(total) - weighted / total).to(tl.float32), here)
            finite = finite & _is_finite(weighted)
        for asked in tl.static_range(ASKED):
            if tl.load(temperatures + SUMS + asked) == temperature:
                score = ((y - largest) / temperature - tl.log(total)).to(tl.float32)
                tl.store(logp + asked * logp_stride + token, score, here)
                finite = finite & _is_finite(score)
    tl.store(all_finite + token, finite, here)


@triton.jit(do_not_specialize=VARYING)  # type: ignore[untyped-decorator]
def _write_row(  # type: ignore[no-untyped-def]
    logits, gradient, column, merged, grad, logits_stride, gradient_stride, sum_place, grad_stride, inverse_temperature,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of columns of one row."""
    blocks: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    token = (tl.program_id(0) // blocks).to(tl.int64)
    start = tl.program_id(0) % blocks * BLOCK
    place = start + tl.arange(0, BLOCK)
    z = tl.load(logits + token * logits_stride + place, mask=place < COLUMNS, other=0.0).to(tl.float32)
    scale = tl.load(grad + token * grad_stride).to(tl.float32) * inverse_temperature
    weight = -scale / tl.load(merged + sum_place + token).to(tl.float32)
    largest = tl.load(merged + token).to(tl.float32)
    slope = _exp2((z - largest) * (inverse_temperature * LOG2_E)) * weight
    own = (tl.load(column + token) - start).to(tl.int32)
    if (own >= 0) & (own < BLOCK):
        slope += tl.where(tl.arange(0, BLOCK) == own, scale, 0.0)
    tl.store(gradient + token * gradient_stride + place, slope, mask=place < COLUMNS)


def reduce_with_triton(
    logits_NV: Tensor, target_N: Tensor, layout: StatisticsLayout, first_column: int, stats_WN: Tensor
) -> None:
    """Write all statistics of each row, the target's logit included, into `stats_WN`.

    Both are contiguous in their last dimension. The logits are read once, and once more for each temperature beyond
    1 and one other.
    """
    tokens, columns = logits_NV.shape
    target_N = target_N.contiguous()  # the kernel reads them with stride 1
    has_one = 1.0 in layout.sum_temperatures
    others = [t for t in layout.sum_temperatures if t != 1.0]
    for index, temperature in enumerate(others or [1.0]):
        first = index == 0
        _reduce_row[(tokens,)](
            logits_NV, target_N, stats_WN, logits_NV.stride(0), stats_WN.stride(0), first_column,
            LOG2_E.value / temperature, COLUMNS=columns,
            ONE=layout.sum_row(1.0) if has_one and first else ABSENT,
            OTHER=layout.sum_row(temperature) if others else ABSENT,
            WEIGHTED=layout.weighted_row if layout.entropy and first else ABSENT,
            **FORWARD,
        )  # fmt: skip


def finish_with_triton(
    stats_RWN: Tensor, layout: StatisticsLayout, logp_KN: Tensor, entropy_N: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Write the scores, and return the merged `[W, N]` float64 statistics and `[N]` whether all of it is finite."""
    ranks, _, tokens = stats_RWN.shape
    merged_WN = stats_RWN.new_empty((layout.weighted_row + int(layout.entropy), tokens), dtype=torch.float64)
    finite_N = stats_RWN.new_empty(tokens, dtype=torch.bool)
    _finish_tokens[(triton.cdiv(tokens, FINISH_TOKENS),)](
        stats_RWN, _on_device((*layout.sum_temperatures, *layout.temperatures), stats_RWN.device),
        merged_WN, logp_KN, entropy_N, finite_N, stats_RWN.stride(0), stats_RWN.stride(1), logp_KN.stride(0), tokens,
        RANKS=ranks, SUMS=len(layout.sum_temperatures), ASKED=len(layout.temperatures), ENTROPY=layout.entropy,
        BLOCK=FINISH_TOKENS,
    )  # fmt: skip
    return merged_WN, finite_N


@cache
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept, because bringing them there waits for the device."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def write_gradient_with_triton(
    logits_NV: Tensor, column_N: Tensor, merged_WN: Tensor, layout: StatisticsLayout, grad_N: Tensor,
    gradient_NV: Tensor,
) -> None:  # fmt: skip
    """`_write_gradient` of dense.py: reads the logits once and writes the gradient once."""
    (temperature,) = layout.temperatures
    tokens, columns = logits_NV.shape
    if logits_NV.stride(1) != 1:
        logits_NV = logits_NV.contiguous()
    _write_row[(tokens * triton.cdiv(columns, BACKWARD["BLOCK"]),)](
        logits_NV, gradient_NV, column_N.contiguous(), merged_WN[MAX_ROW], grad_N, logits_NV.stride(0),
        gradient_NV.stride(0), layout.sum_row(temperature) * merged_WN.stride(0), grad_N.stride(0), 1.0 / temperature,
        COLUMNS=columns, **BACKWARD,
    )  # fmt: skip
