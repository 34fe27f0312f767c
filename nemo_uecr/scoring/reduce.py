"""One entry to reduce logits to statistics, whatever the device.

Legend: N tokens, V vocabulary columns of this shard, W statistics a token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from nemo_uecr.scoring.native import MAX_SUMS, native_serves, reduce_natively
from nemo_uecr.scoring.records import MAX_ROW, TARGET_ROW, StatisticsLayout
from nemo_uecr.scoring.torch_rows import reduce_with_torch

CPU_COPY_ELEMENTS = 1 << 18
CUDA_COPY_ELEMENTS = 1 << 25
"""Logits copied at a time where a row's logits do not lie side by side."""


def reduce_logits(
    logits_NV: Tensor, target_N: Tensor, layout: StatisticsLayout, first_column: int, stats_WN: Tensor
) -> None:
    """Reduce each row of a vocabulary shard to W numbers.

    Args:
        logits_NV: `[N, V]` float logits of the real columns of this shard; V may be 0.
        target_N: `[N]` token ids of the whole vocabulary.
        layout: which statistics to compute.
        first_column: token id of column 0 of this shard.
        stats_WN: `[W, N]` float32 with unit stride along N, overwritten; the target's row becomes -inf where
            the target is not in this shard.
    """
    columns = logits_NV.shape[1]
    if columns == 0:
        stats_WN.zero_()
        stats_WN[: TARGET_ROW + 1] = -torch.inf
    elif (columns > 1 and logits_NV.stride(1) != 1) or logits_NV.is_neg():
        _reduce_copies(logits_NV, target_N, layout, first_column, stats_WN)
    elif logits_NV.is_cuda and _has_triton():
        from nemo_uecr.scoring.triton_kernels import reduce_with_triton  # noqa: PLC0415 (needs Triton)

        with torch.cuda.device(logits_NV.device):
            reduce_with_triton(logits_NV, target_N, layout, first_column, stats_WN)
    else:
        _reduce_rows(logits_NV, layout, stats_WN)
        stats_WN[TARGET_ROW] = target_logits(logits_NV, target_N, first_column)


def _reduce_copies(
    logits_NV: Tensor, target_N: Tensor, layout: StatisticsLayout, first_column: int, stats_WN: Tensor
) -> None:
    """Reduce copies of a few rows at a time, so that how a view lies in memory changes no bit of its statistics.

    Its strides are one such thing, a sign that torch has put off (`x.conj().imag`) another.
    """
    elements = CUDA_COPY_ELEMENTS if logits_NV.is_cuda else CPU_COPY_ELEMENTS
    rows = max(1, elements // logits_NV.shape[1])
    for start in range(0, logits_NV.shape[0], rows):
        block = slice(start, start + rows)
        copy_CV = logits_NV[block].contiguous().resolve_neg()
        reduce_logits(copy_CV, target_N[block], layout, first_column, stats_WN[:, block])


def _reduce_rows(logits_NV: Tensor, layout: StatisticsLayout, stats_WN: Tensor) -> None:
    """Reduce with the native kernel what it takes and with torch the rest.

    Which of the two a temperature goes to depends on that temperature alone: what else is asked beside it
    changes no bit of its sum.
    """
    native = [t for t in layout.sum_temperatures if native_serves(logits_NV, t)]
    rest = tuple(t for t in layout.sum_temperatures if t not in native)
    parts = [tuple(native[i : i + MAX_SUMS]) for i in range(0, len(native), MAX_SUMS)]
    if not parts:
        reduce_with_torch(logits_NV, layout, stats_WN)
    elif len(parts) == 1 and not rest:
        reduce_natively(logits_NV, layout, stats_WN)
    else:
        for part in parts:
            with_entropy = StatisticsLayout(part, layout.entropy and 1.0 in part)
            _reduce_part(reduce_natively, logits_NV, with_entropy, layout, stats_WN)
        if rest:
            _reduce_part(reduce_with_torch, logits_NV, StatisticsLayout(rest, False), layout, stats_WN)


def _reduce_part(
    reduction: Callable[[Tensor, StatisticsLayout, Tensor], None],
    logits_NV: Tensor,
    part: StatisticsLayout,
    layout: StatisticsLayout,
    stats_WN: Tensor,
) -> None:
    """Reduce for some of the temperatures, and put their statistics where the whole layout has them."""
    part_WN = stats_WN.new_zeros(part.width, stats_WN.shape[1])
    reduction(logits_NV, part, part_WN)
    stats_WN[MAX_ROW] = part_WN[MAX_ROW]
    for temperature in part.sum_temperatures:
        stats_WN[layout.sum_row(temperature)] = part_WN[part.sum_row(temperature)]
    if part.entropy:
        stats_WN[layout.weighted_row] = part_WN[part.weighted_row]


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def target_logits(logits_NV: Tensor, target_N: Tensor, first_column: int) -> Tensor:
    """The logit of each target, `[N]` float32; -inf where it is not among these V >= 1 columns."""
    columns = logits_NV.shape[1]
    column_N = target_N.long() - first_column
    owned_N = (column_N >= 0) & (column_N < columns)
    logit_N = logits_NV.gather(1, column_N.clamp(0, columns - 1).unsqueeze(1)).squeeze(1).float()
    return torch.where(owned_N, logit_N, -torch.inf)
