"""The one collective of a call whose vocabulary is sharded over a process group.

Legend: R ranks, N tokens, n tokens of one chunk, W statistics a token.

Each rank reduces its shard to W float32 numbers a token (16 bytes; 20 with a second temperature), one all-gather
brings them together, and every rank merges them in rank order: all ranks hold identical bits.

Ranks that bring different sizes abort the process with gloo and wait for the timeout with NCCL; ranks with other
targets get wrong numbers. Run again with `NEMO_UECR_DEBUG_COLLECTIVES=1`: then the ranks compare notes before each
call, and every rank names the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.records import StatisticsLayout, VocabShard

DEBUG = "NEMO_UECR_DEBUG_COLLECTIVES"
#: Up to this many gathered bytes gloo's own second buffer for a gather is of no account.
STAGED_BYTES = 1 << 20

# torch 2.13 renamed the collective that gathers into one tensor.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def gathered_statistics(
    statistics_of: Callable[[slice], Tensor],
    chunks: list[slice],
    target_N: Tensor,
    layout: StatisticsLayout,
    columns: int,
    valid_vocab: int | None,
    shard: VocabShard,
) -> Tensor:
    """Reduce this rank's shard and gather all ranks' `[R, W, N]` statistics, in rank order, with one collective.

    Arguments as for `scores_by_chunk`. In debug mode ranks that make different calls, or shards that do not tile the
    vocabulary, are a `ScoreError`.
    """
    if os.environ.get(DEBUG) == "1":
        call = {"tokens": target_N.shape[0], "targets": hash(tuple(target_N.tolist())), "layout": layout}
        _check_agreement(call | {"valid_vocab": valid_vocab}, columns, shard)
    rank, size = dist.get_rank(shard.group), dist.get_world_size(shard.group)
    gathered_RWN = target_N.new_empty((size, layout.width, target_N.shape[0]), dtype=torch.float32)
    for chunk in chunks:
        gathered_RWN[rank, :, chunk] = statistics_of(chunk)
    if size > 1:
        _exchange(gathered_RWN, rank, shard.group)
    return gathered_RWN


def _exchange(gathered_RWN: Tensor, rank: int, group: dist.ProcessGroup | None) -> None:
    """Bring the ranks' statistics together in place.

    On a CPU gloo's all-gather holds a second buffer as large as the gathered one. Where that would count, its
    all-reduce, which works in place, takes over: what a rank did not write is 0, and x + 0 is x in every bit.
    """
    if gathered_RWN.device.type == "cpu" and gathered_RWN.nbytes > STAGED_BYTES:
        gathered_RWN[:rank].zero_()
        gathered_RWN[rank + 1 :].zero_()
        dist.all_reduce(gathered_RWN, group=group)
    else:
        _all_gather(gathered_RWN.flatten(), gathered_RWN[rank].flatten(), group=group)


def _check_agreement(call: dict[str, object], columns: int, shard: VocabShard) -> None:
    said: list[tuple[dict[str, object], int, int]] = [({}, 0, 0)] * dist.get_world_size(shard.group)
    dist.all_gather_object(said, (call, shard.first_column, columns), group=shard.group)
    for name in call:
        values = [other[name] for other, _, _ in said]
        if values != values[:1] * len(values):
            raise ScoreError(f"the ranks of the group disagree on {name}: {values} in rank order")
    starts, widths = [first for _, first, _ in said], [width for _, _, width in said]
    if starts != [0, *accumulate(widths[:-1])]:
        raise ScoreError(
            f"the shards of the group start at columns {starts} and are {widths} columns wide, expected them to tile "
            "the vocabulary in rank order: is this the group the weight is sharded over?"
        )
