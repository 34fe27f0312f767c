"""One rank's part of a vocabulary-parallel call: reduce the shard, agree, gather.

Legend: R ranks, N tokens, W statistics a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.scoring.agreement import Meeting, ShardCall
from nemo_uecr.scoring.checks import check_shard, check_tokens, statistics_layout
from nemo_uecr.scoring.records import StatisticsLayout, TokenScores
from nemo_uecr.scoring.statistics import scores_by_chunk

CHECKSUM_PERIOD = 8191

# torch 2.13 renamed the collective that gathers into one tensor.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class ShardPlace:
    """Where this rank's columns stand in the whole vocabulary, and with whom it shares that."""

    first_column: int
    columns: int
    group: dist.ProcessGroup | None
    valid_vocab: int | None

    @property
    def real_columns(self) -> int:
        """How many of this shard's columns are real; the rest is padding."""
        if self.valid_vocab is None:
            return self.columns
        return max(0, min(self.columns, self.valid_vocab - self.first_column))


@dataclass(frozen=True)
class Asked:
    """What a call asks for, in the words of `score_logits`."""

    temperatures: tuple[float, ...]
    entropy: bool
    top1: bool


def sharded_statistics(
    name: str,
    rows: Tensor,
    target_N: Tensor,
    place: ShardPlace,
    asked: Asked,
    reduce_shard: Callable[[StatisticsLayout, Tensor], None],
) -> tuple[Tensor, StatisticsLayout, int]:
    """Reduce this rank's shard and gather all ranks' statistics with one collective.

    Args:
        name: what `rows` is called in the public function, for messages.
        rows: `[N, *]` logits or hidden states of this rank.
        target_N: `[N]` token ids of the whole vocabulary.
        place: this rank's columns.
        asked: what the call asks for.
        reduce_shard: writes this shard's statistics into a `[W, N]` float32 tensor.

    Returns:
        The `[R, W, N]` float32 statistics in rank order, their layout, and the number of real columns of the
        whole vocabulary.

    Raises:
        ScoringInputError: this rank's arguments are wrong.
        ShardMismatchError: another rank refused, or the ranks disagree.
    """
    with Meeting(place.group) as meeting:
        layout = statistics_layout(asked.temperatures, asked.entropy)
        check_tokens(name, rows, target_N)
        check_shard(place.first_column, place.valid_vocab)
        gathered_RWN = torch.empty(meeting.size, layout.width, rows.shape[0], dtype=torch.float32, device=rows.device)
        reduce_shard(layout, gathered_RWN[meeting.rank])
        vocab = meeting.agree(_call(name, rows, target_N, place, asked))
    if meeting.size > 1:
        _all_gather(gathered_RWN.flatten(), gathered_RWN[meeting.rank].flatten(), group=meeting.group)
    return gathered_RWN, layout, vocab if place.valid_vocab is None else place.valid_vocab


def merged_scores(
    gathered_RWN: Tensor, target_N: Tensor, layout: StatisticsLayout, top1: bool, vocab: int
) -> TokenScores:
    """Scores from the gathered statistics; see `scores_by_chunk`."""

    def stats_of(chunk: slice) -> Tensor:
        return gathered_RWN[:, :, chunk]

    return scores_by_chunk(stats_of, target_N, layout, top1, vocab)


def _call(name: str, rows: Tensor, target_N: Tensor, place: ShardPlace, asked: Asked) -> ShardCall:
    """This rank's line for the other ranks; the targets enter as a checksum that depends on their order."""
    weight_N = torch.arange(target_N.shape[0], device=target_N.device) % CHECKSUM_PERIOD + 1
    return ShardCall(
        rows=name,
        tokens=rows.shape[0],
        dtype=str(rows.dtype),
        temperatures=list(asked.temperatures),
        entropy=asked.entropy,
        top1=asked.top1,
        valid_vocab=place.valid_vocab,
        targets=int((target_N.long() * weight_N).sum()),
        first_column=place.first_column,
        columns=place.columns,
    )
