"""One entry to reduce logits to statistics, whatever the device.

Legend: N tokens, V vocabulary columns of this shard, W statistics a token.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from nemo_uecr.scoring.native import native_serves, reduce_natively
from nemo_uecr.scoring.records import TARGET_ROW, StatisticsLayout
from nemo_uecr.scoring.torch_rows import reduce_with_torch


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
        return
    if _triton_serves(logits_NV):
        from nemo_uecr.scoring.triton_kernels import reduce_with_triton  # noqa: PLC0415 (needs Triton)

        with torch.cuda.device(logits_NV.device):
            reduce_with_triton(logits_NV, target_N, layout, first_column, stats_WN)
        return
    if native_serves(logits_NV, layout):
        reduce_natively(logits_NV, layout, stats_WN)
    else:
        reduce_with_torch(logits_NV, layout, stats_WN)
    stats_WN[TARGET_ROW] = target_logits(logits_NV, target_N, first_column)


def _triton_serves(logits_NV: Tensor) -> bool:
    return logits_NV.is_cuda and logits_NV.stride(1) == 1 and _has_triton()


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
