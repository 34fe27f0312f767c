"""The definition: log-probability and entropy of given tokens from whole rows of logits.

Legend: N tokens, V vocabulary columns, K temperatures, W statistics a token,
n tokens of one chunk, C rows of one block.
Statistics are float32 whatever the dtype of the logits; results are float32 nats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.scoring.checks import check_tokens, check_vocab, statistics_layout, switch
from nemo_uecr.scoring.records import MAX_ROW, StatisticsLayout, TokenScores
from nemo_uecr.scoring.reduce import reduce_logits
from nemo_uecr.scoring.statistics import chunks_of, room_for_gradient, scores_by_chunk
from nemo_uecr.scoring.torch_rows import rows_per_block


@torch.no_grad()
def score_logits(
    logits_NV: Tensor,
    target_N: Tensor,
    *,
    temperatures: tuple[float, ...],
    entropy: bool,
    top1: bool = False,
    valid_vocab: int | None = None,
) -> TokenScores:
    """Score given tokens at several temperatures, with the entropy, in one pass over the logits.

    log p_T(y) = (z_y - m) / T - log sum_v exp((z_v - m) / T), m = max_v z_v;
    H = log s - sum_v (z_v - m) exp(z_v - m) / s, s = sum_v exp(z_v - m), at temperature 1.
    At temperature 1 the logits are neither divided nor multiplied. No gradient flows.

    Args:
        logits_NV: `[N, V]` float32, bfloat16 or float16 logits; -inf is a masked column, of probability 0.
        target_N: `[N]` int token ids.
        temperatures: the temperatures T of the log-probabilities, all above 0.
        entropy: whether to return the entropy at temperature 1.
        top1: whether to return if the target attains the largest logit.
        valid_vocab: number of real columns; columns from there on are padding and carry no probability.

    Returns:
        The scores, float32 nats.

    Raises:
        ScoringInputError: wrong shape, dtype or temperature, or no token.
        TargetOutOfVocabularyError: a target outside the vocabulary.
        NonFiniteScoreError: a NaN or +inf logit, a target of logit -inf, or a log-probability beyond float32.

    References:
        Teacher scores of the method: eq:teacher-token-reward (log-probability), eq:local-signal (entropy).
    """
    check_tokens("logits_NV", logits_NV, target_N)
    vocab = check_vocab(logits_NV.shape[1], valid_vocab)
    layout = statistics_layout(temperatures, entropy)
    switch("top1", top1)
    real_NV = logits_NV[:, :vocab]

    return scores_by_chunk(_statistics_of(real_NV, target_N, layout), target_N, layout, top1, vocab)


def token_logp(logits_NV: Tensor, target_N: Tensor, *, temperature: float) -> Tensor:
    """Differentiable log-probability of given tokens at one temperature.

    log p_T(y) = (z_y - m) / T - log sum_v exp((z_v - m) / T);  d log p_T / d z_v = (1[v = y] - p_T(v)) / T.
    The forward is `score_logits` at that temperature, row by row the same arithmetic: in one process and on one
    device equal logits give bitwise equal log-probabilities, whatever the batching, the strides, the number of
    threads, and the other temperatures that `score_logits` was asked for.

    Args:
        logits_NV: `[N, V]` float32, bfloat16 or float16 logits.
        target_N: `[N]` int token ids.
        temperature: T above 0.

    Returns:
        `[N]` float32 nats; its gradient has the dtype of the logits.

    Raises:
        ScoringInputError: wrong shape, dtype or temperature, or no token.
        TargetOutOfVocabularyError: a target outside the vocabulary.
        NonFiniteScoreError: a NaN or +inf logit, a target of logit -inf, or a log-probability beyond float32.
    """
    check_tokens("logits_NV", logits_NV, target_N)
    check_vocab(logits_NV.shape[1], None)
    layout = statistics_layout((temperature,), False)
    recording = torch.is_grad_enabled()  # which inside the function is never so
    logp_N: Tensor = _TokenLogp.apply(logits_NV, target_N, layout, recording)  # type: ignore[no-untyped-call]
    return logp_N


def _statistics_of(logits_NV: Tensor, target_N: Tensor, layout: StatisticsLayout) -> Callable[[slice], Tensor]:
    """What gives the `[1, W, n]` float32 statistics of a chunk of n tokens."""

    def stats_of(chunk: slice) -> Tensor:
        shape = (1, layout.width, chunk.stop - chunk.start)
        stats_1Wn = torch.empty(shape, dtype=torch.float32, device=logits_NV.device)
        reduce_logits(logits_NV[chunk], target_N[chunk], layout, 0, stats_1Wn[0])
        return stats_1Wn

    return stats_of


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, target_N: Tensor, layout: StatisticsLayout, recording: bool) -> Tensor:
        kept_WN = room_for_gradient(logits_NV, layout) if recording and ctx.needs_input_grad[0] else None
        stats_of = _statistics_of(logits_NV, target_N, layout)
        scores = scores_by_chunk(stats_of, target_N, layout, False, logits_NV.shape[1], kept_WN)
        if kept_WN is not None:
            ctx.save_for_backward(logits_NV, target_N, kept_WN)
        ctx.layout = layout
        return scores.logp_KN[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits_NV, target_N, merged_WN = ctx.saved_tensors
        gradient_NV = torch.empty_like(logits_NV)
        write_gradient(logits_NV, target_N, 0, merged_WN, ctx.layout, grads[0], gradient_NV)
        return gradient_NV, None, None, None


def write_gradient(
    logits_NV: Tensor,
    target_N: Tensor,
    first_column: int,
    merged_WN: Tensor,
    layout: StatisticsLayout,
    grad_N: Tensor,
    gradient_NV: Tensor,
) -> None:
    """Gradient of the log-probability at the layout's one temperature for the logits of one vocabulary shard.

    g_v = grad / T * (1[v = y] - exp((z_v - m) / T) / s), in float32, stored in the dtype of the logits.
    A chunk of tokens at a time: beside the gradient itself no memory grows with N.

    Args:
        logits_NV: `[N, V]` logits of the shard.
        target_N: `[N]` token ids of the whole vocabulary.
        first_column: token id of column 0 of the shard.
        merged_WN: `[W, N]` float64 statistics of the whole vocabulary.
        layout: their layout.
        grad_N: `[N]` gradient of the result for each log-probability.
        gradient_NV: `[N, V]` in the dtype of the logits, overwritten.
    """
    columns = logits_NV.shape[1]
    for chunk in chunks_of(target_N):
        rows = min(chunk.stop - chunk.start, rows_per_block(columns))
        buffer_CV = torch.empty(rows, columns, dtype=torch.float32, device=logits_NV.device)
        column_n = (target_N[chunk] - first_column).long()
        _write_chunk(
            logits_NV[chunk], column_n, merged_WN[:, chunk], layout, grad_N[chunk], buffer_CV, gradient_NV[chunk]
        )


def _write_chunk(
    logits_nV: Tensor,
    column_n: Tensor,
    merged_Wn: Tensor,
    layout: StatisticsLayout,
    grad_n: Tensor,
    buffer_CV: Tensor,
    gradient_nV: Tensor,
) -> None:
    """`write_gradient` for one chunk, as many rows at a time as the buffer holds."""
    (temperature,) = layout.temperatures
    tokens, columns = logits_nV.shape
    scale_n = grad_n.double() / temperature
    weight_n1 = (-scale_n / merged_Wn[layout.sum_row(temperature)]).float().unsqueeze(1)
    one_n1 = torch.where((column_n >= 0) & (column_n < columns), scale_n, 0.0).float().unsqueeze(1)
    column_n1 = column_n.clamp(0, columns - 1).unsqueeze(1)
    max_n1 = merged_Wn[MAX_ROW].float().unsqueeze(1)
    rows = buffer_CV.shape[0]
    for start in range(0, tokens, rows):
        block = slice(start, min(start + rows, tokens))
        slope_CV = buffer_CV[: block.stop - start].copy_(logits_nV[block]).sub_(max_n1[block])
        if temperature != 1.0:
            slope_CV.div_(temperature)
        gradient_nV[block] = slope_CV.exp_().mul_(weight_n1[block]).scatter_add_(1, column_n1[block], one_n1[block])
