"""Scores from logits whose vocabulary is sharded over a process group, with one collective a call.

Legend: R ranks, N tokens, V vocabulary columns of this rank's shard, K temperatures, W statistics a token.

Each rank reduces its shard to W float32 numbers a token (16 bytes; 20 with a second temperature), one
all-gather brings them together, and every rank merges them in rank order: all ranks hold identical bits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.scoring.dense import write_gradient
from nemo_uecr.scoring.records import StatisticsLayout, TokenScores
from nemo_uecr.scoring.reduce import reduce_logits
from nemo_uecr.scoring.shards import Asked, Shard, ShardPlace, merged_scores, sharded_statistics
from nemo_uecr.scoring.statistics import room_for_gradient


@torch.no_grad()
def score_vocab_parallel(
    logits_NV: Tensor,
    target_N: Tensor,
    *,
    first_column: int,
    group: dist.ProcessGroup | None,
    temperatures: tuple[float, ...],
    entropy: bool,
    top1: bool = False,
    valid_vocab: int | None = None,
) -> TokenScores:
    """`score_logits` over a process group, each rank holding some columns of the logits.

    Shard statistics (m_r, y_r, s_r, t_r) merge as in `merge_shards`; the results are those of `score_logits`
    on the concatenated shards. No gradient flows.

    Args:
        logits_NV: `[N, V]` float32, bfloat16 or float16 logits of this rank's shard; widths may differ.
        target_N: `[N]` int token ids of the whole vocabulary, the same on all ranks.
        first_column: token id of column 0 of this shard; shards tile the vocabulary in rank order.
        group: the process group of the shards; None is the default group. A rank that gives anything else than
            a group it belongs to cannot tell the others: it raises at once, the others after the store's timeout,
            and as its calls are then one behind, the group must not be used again.
        temperatures: the temperatures T of the log-probabilities, all above 0.
        entropy: whether to return the entropy at temperature 1.
        top1: whether to return if the target attains the largest logit.
        valid_vocab: number of real columns of the whole vocabulary; columns from there on are padding.

    Returns:
        The scores, float32 nats, bitwise equal on all ranks.

    Raises:
        ScoringInputError: this rank's arguments are wrong; the other ranks raise ShardMismatchError.
        ShardMismatchError: the ranks disagree, or the shards do not tile the vocabulary; on all ranks.
        TargetOutOfVocabularyError: a target outside the vocabulary; on all ranks.
        NonFiniteScoreError: a NaN or +inf logit, a target of logit -inf, or a log-probability beyond float32;
            on all ranks.
    """
    place, asked = ShardPlace(first_column, group, valid_vocab), Asked(temperatures, entropy, top1)
    gathered_RWN, layout, vocab = _gathered(logits_NV, target_N, place, asked)
    return merged_scores(gathered_RWN, target_N, layout, top1, vocab)


def token_logp_vocab_parallel(
    logits_NV: Tensor,
    target_N: Tensor,
    *,
    first_column: int,
    group: dist.ProcessGroup | None,
    temperature: float,
    valid_vocab: int | None = None,
) -> Tensor:
    """`token_logp` over a process group; one collective in the forward, none in the backward.

    d log p_T / d z_v = (1[v = y] - p_T(v)) / T for the columns v of this shard; padding columns get 0.
    The log-probabilities are bitwise those of `score_vocab_parallel` at that temperature.

    Args:
        logits_NV: `[N, V]` float32, bfloat16 or float16 logits of this rank's shard.
        target_N: `[N]` int token ids of the whole vocabulary, the same on all ranks.
        first_column: token id of column 0 of this shard; shards tile the vocabulary in rank order.
        group: see `score_vocab_parallel`.
        temperature: T above 0.
        valid_vocab: number of real columns of the whole vocabulary; columns from there on are padding.

    Returns:
        `[N]` float32 nats, equal on all ranks. Every rank must use the same gradient for it.

    Raises:
        ScoringInputError, ShardMismatchError, TargetOutOfVocabularyError, NonFiniteScoreError: see
            `score_vocab_parallel`.
    """
    logp_N: Tensor = _ShardedLogp.apply(  # type: ignore[no-untyped-call]
        logits_NV, target_N, first_column, group, temperature, valid_vocab, torch.is_grad_enabled()
    )
    return logp_N


def _gathered(
    logits_NV: Tensor, target_N: Tensor, place: ShardPlace, asked: Asked
) -> tuple[Tensor, StatisticsLayout, int]:
    def reduce(chunk: slice, layout: StatisticsLayout, stats_Wn: Tensor) -> None:
        real_nV = logits_NV[chunk, : place.real_columns(logits_NV.shape[1])]
        reduce_logits(real_nV, target_N[chunk], layout, place.first_column, stats_Wn)

    def open_shard() -> Shard:
        return Shard(logits_NV.shape[1], None, logits_NV.dtype, reduce)

    return sharded_statistics("logits_NV", logits_NV, target_N, place, asked, open_shard)


class _ShardedLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits_NV: Tensor,
        target_N: Tensor,
        first_column: int,
        group: dist.ProcessGroup | None,
        temperature: float,
        valid_vocab: int | None,
        recording: bool,
    ) -> Tensor:
        place, asked = ShardPlace(first_column, group, valid_vocab), Asked((temperature,), False, False)
        gathered_RWN, layout, vocab = _gathered(logits_NV, target_N, place, asked)
        kept_WN = room_for_gradient(logits_NV, layout) if recording and ctx.needs_input_grad[0] else None
        scores = merged_scores(gathered_RWN, target_N, layout, False, vocab, kept_WN)
        if kept_WN is not None:
            ctx.save_for_backward(logits_NV, target_N, kept_WN)
        ctx.layout, ctx.place = layout, place
        return scores.logp_KN[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None, None]:
        logits_NV, target_N, merged_WN = ctx.saved_tensors
        columns, first = ctx.place.real_columns(logits_NV.shape[1]), ctx.place.first_column
        gradient_NV = torch.zeros_like(logits_NV)
        if columns > 0:
            real_NV, gradient_of_real_NV = logits_NV[:, :columns], gradient_NV[:, :columns]
            write_gradient(real_NV, target_N, first, merged_WN, ctx.layout, grads[0], gradient_of_real_NV)
        return gradient_NV, None, None, None, None, None, None
