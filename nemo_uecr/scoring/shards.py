"""One rank's part of a vocabulary-parallel call: reduce the shard, agree, gather.

Legend: R ranks, N tokens, n tokens of one chunk, W statistics a token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.scoring.agreement import Meeting, ShardCall
from nemo_uecr.scoring.checks import check_shard, check_tokens, statistics_layout, switch
from nemo_uecr.scoring.errors import ShardMismatchError
from nemo_uecr.scoring.records import StatisticsLayout, TokenScores
from nemo_uecr.scoring.statistics import chunks_of, scores_by_chunk

DIGEST_TOKENS = 1 << 14
STAGED_BYTES = 1 << 20
"""Up to this many gathered bytes gloo's own second buffer for a gather is of no account."""

# torch 2.13 renamed the collective that gathers into one tensor.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class ShardPlace:
    """Where this rank's columns stand in the whole vocabulary, and with whom it shares that."""

    first_column: int
    group: dist.ProcessGroup | None
    valid_vocab: int | None

    def real_columns(self, columns: int) -> int:
        """How many of this shard's columns are real; the rest is padding."""
        if self.valid_vocab is None:
            return columns
        return max(0, min(columns, self.valid_vocab - self.first_column))


@dataclass(frozen=True)
class Asked:
    """What a call asks for, in the words of `score_logits`."""

    temperatures: tuple[float, ...]
    entropy: bool
    top1: bool


@dataclass(frozen=True)
class Shard:
    """A shard whose arguments hold: its width, what it is multiplied from, and how a chunk of it is reduced.

    `reduce` writes the `[W, n]` float32 statistics of a slice of n tokens.
    """

    columns: int
    hidden: int | None
    logits_dtype: torch.dtype
    reduce: Callable[[slice, StatisticsLayout, Tensor], None]


def sharded_statistics(
    name: str, rows: Tensor, target_N: Tensor, place: ShardPlace, asked: Asked, open_shard: Callable[[], Shard]
) -> tuple[Tensor, StatisticsLayout, int]:
    """Reduce this rank's shard and gather all ranks' statistics with one collective.

    Every argument is looked at after the ranks have met, so that what one rank refuses all ranks learn.

    Args:
        name: what `rows` is called in the public function, for messages.
        rows: `[N, *]` logits or hidden states of this rank.
        target_N: `[N]` token ids of the whole vocabulary.
        place: this rank's columns.
        asked: what the call asks for.
        open_shard: checks what is left to check and returns this rank's shard.

    Returns:
        The `[R, W, N]` float32 statistics in rank order, their layout, and the number of real columns of the
        whole vocabulary.

    Raises:
        ScoringInputError: this rank's arguments are wrong.
        ShardMismatchError: another rank refused, or the ranks disagree, or one was lost in the collective.
    """
    with Meeting(place.group) as meeting:
        layout = statistics_layout(asked.temperatures, asked.entropy)
        switch("top1", asked.top1)
        check_tokens(name, rows, target_N)
        check_shard(place.first_column, place.valid_vocab)
        shard = open_shard()
        digest = target_digest(target_N)
        gathered_RWN = torch.empty(meeting.size, layout.width, rows.shape[0], dtype=torch.float32, device=rows.device)
        for chunk in chunks_of(target_N):
            shard.reduce(chunk, layout, gathered_RWN[meeting.rank, :, chunk])
        vocab = meeting.agree(_call(name, rows, shard, digest, place, asked))
    if meeting.size > 1:
        _exchange(gathered_RWN, meeting)
    return gathered_RWN, layout, vocab if place.valid_vocab is None else place.valid_vocab


def merged_scores(
    gathered_RWN: Tensor,
    target_N: Tensor,
    layout: StatisticsLayout,
    top1: bool,
    vocab: int,
    kept_WN: Tensor | None = None,
) -> TokenScores:
    """Scores from the gathered statistics; see `scores_by_chunk`."""

    def stats_of(chunk: slice) -> Tensor:
        return gathered_RWN[:, :, chunk]

    return scores_by_chunk(stats_of, target_N, layout, top1, vocab, kept_WN)


def target_digest(target_N: Tensor) -> str:
    """128 bits that differ, but for a chance of 2^-128, where the targets or their order do."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk_n in target_N.split(DIGEST_TOKENS):  # type: ignore[no-untyped-call]
        digest.update(chunk_n.to("cpu", torch.int64).contiguous().resolve_neg().numpy())
    return digest.hexdigest()


def _exchange(gathered_RWN: Tensor, meeting: Meeting) -> None:
    """Bring the ranks' statistics together in place: the one collective of a call.

    On a CPU gloo's all-gather holds a second buffer as large as the gathered one. Where that would count, its
    all-reduce, which works in place, takes over: what a rank did not write is 0, and x + 0 is x in every bit.
    """
    rank = meeting.rank
    try:
        if gathered_RWN.device.type == "cpu" and gathered_RWN.nbytes > STAGED_BYTES:
            gathered_RWN[:rank].zero_()
            gathered_RWN[rank + 1 :].zero_()
            dist.all_reduce(gathered_RWN, group=meeting.group)
            return
        _all_gather(gathered_RWN.flatten(), gathered_RWN[rank].flatten(), group=meeting.group)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        raise ShardMismatchError(
            f"the collective of the group of {meeting.size} failed after its ranks had agreed ({said}); has one of "
            "them ended? look at the logs of the others, and make a new group"
        ) from error


def _call(name: str, rows: Tensor, shard: Shard, digest: str, place: ShardPlace, asked: Asked) -> ShardCall:
    """This rank's line for the other ranks."""
    return ShardCall(
        rows=name,
        tokens=rows.shape[0],
        hidden=shard.hidden,
        dtype=str(rows.dtype),
        logits_dtype=str(shard.logits_dtype),
        device=rows.device.type,
        temperatures=list(asked.temperatures),
        entropy=asked.entropy,
        top1=asked.top1,
        valid_vocab=place.valid_vocab,
        targets=digest,
        first_column=place.first_column,
        columns=shard.columns,
    )
