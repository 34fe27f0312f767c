"""The definition: log-probability and entropy of given tokens from whole rows of logits.

Legend: N tokens, V vocabulary columns (of this rank's shard), K temperatures, W statistics per token,
n tokens of one chunk, C rows of one block, S sequences of T tokens.
Statistics are float32 whatever the dtype of the logits; results are float32 nats.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core.record import as_bool
from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.records import MAX_ROW, StatisticsLayout, TokenScores, VocabShard, check_tokens, real_columns
from nemo_uecr.scoring.reduce import reduce_logits, rows_per_block, triton_serves
from nemo_uecr.scoring.statistics import chunks_of, scores_by_chunk

#: Neighbouring tokens: start and stop among the chosen ones, their sequence, the place of the first in it.
Run = tuple[int, int, int, int]
SMALLEST_RUN = 1 << 20
"""Where runs have fewer logits than this on average, one copy is cheaper than a call per run."""


@torch.no_grad()
def token_scores(
    logits: Tensor,
    tokens: Tensor,
    mask: Tensor | None = None,
    *,
    temperatures: tuple[float, ...] = (1.0,),
    entropy: bool = False,
    dropped: bool = False,
    valid_vocab: int | None = None,
    shard: VocabShard | None = None,
    keep_nan: bool = False,
) -> TokenScores:
    """Score given tokens at several temperatures, with the entropy, in one pass over the logits.

    log p_T(y) = (z_y - m) / T - log sum_v exp((z_v - m) / T), m = max_v z_v;
    H = log s - sum_v (z_v - m) exp(z_v - m) / s, s = sum_v exp(z_v - m), at temperature 1.
    At temperature 1 the logits are neither divided nor multiplied. No gradient flows. Large slices are not copied.

    Args:
        logits: `[..., V]` float32, bfloat16 or float16 logits at the positions that predict the tokens: those at t
            predict the token at t + 1. -inf is a masked column, of probability 0.
        tokens: `[...]` int token ids of the whole vocabulary; the same on all ranks.
        mask: `[...]` bool or integer; scores elsewhere are 0, logits elsewhere are never read. None is everywhere.
        temperatures: of the log-probabilities, all above 0: 1 for the gap to a teacher, the rollout's T_r for the
            policy's ratio.
        entropy: whether to return the entropy at temperature 1.
        dropped: whether to return the probability, at temperature 1, that the columns from `valid_vocab` on would have.
        valid_vocab: number of real columns of the whole vocabulary; columns from there on are padding and carry no
            probability. None if all are real.
        shard: this rank's place where a process group shards the vocabulary: one collective per call. None where the
            logits hold all columns.
        keep_nan: NaN for a token whose logits give no finite score, in place of `NonFiniteScoreError`.

    Returns:
        The scores: log-probabilities `[K, ...]`, entropy and dropped mass `[...]`, float32 nats; bitwise equal on all
        ranks of a group.

    Raises:
        ScoreError: wrong shape, dtype or temperature, or a target outside the vocabulary.
        NonFiniteScoreError: a NaN or +inf logit, a target of logit -inf, or a log-probability beyond float32.

    References:
        Teacher scores of the method: eq:teacher-token-reward (log-probability), eq:local-signal (entropy).
    """
    layout = StatisticsLayout(temperatures, entropy, dropped)
    rows, target_N, runs, place_N = _chosen(logits, tokens, mask)
    found = _scores(rows, target_N, runs, layout, valid_vocab, shard, None, keep_nan)
    values = (None if value is None else _placed(value, tokens, place_N) for value in (found.entropy, found.dropped))
    return TokenScores(temperatures, _placed(found.logp, tokens, place_N), *values)


def token_logp(
    logits: Tensor,
    tokens: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    shard: VocabShard | None = None,
) -> Tensor:
    """Differentiable log-probability of given tokens at one temperature.

    log p_T(y) = (z_y - m) / T - log sum_v exp((z_v - m) / T);  d log p_T / d z_v = (1[v = y] - p_T(v)) / T.
    The forward is `token_scores` at that temperature, row by row the same arithmetic: in one process and on one
    device equal logits give bitwise equal log-probabilities, whatever the batching, the strides, the number of
    threads, and the other temperatures (between 0.001 and 50) that `token_scores` was asked for.

    Args:
        logits: `[..., V]` float32, bfloat16 or float16 logits at the positions that predict the tokens.
        tokens: `[...]` int token ids.
        mask: `[...]` bool or integer; the result is 0 elsewhere, and logits elsewhere are never read. None is
            everywhere.
        temperature: T above 0; the rollout's T_r for the policy's ratio.
        valid_vocab: see `token_scores`; padding columns get a gradient of 0.
        shard: see `token_scores`; the backward needs no collective, and every rank must use the same gradient for
            the result.

    Returns:
        `[...]` float32 nats; its gradient has the dtype of the logits.

    Raises:
        ScoreError, NonFiniteScoreError: see `token_scores`.
    """
    layout = StatisticsLayout((temperature,), False)
    rows, target_N, runs, place_N = _chosen(logits, tokens, mask)
    if not torch.is_grad_enabled():  # inside the function it never is
        rows = rows.detach()
    logp_N: Tensor = _TokenLogp.apply(rows, target_N, runs, layout, valid_vocab, shard)  # type: ignore[no-untyped-call]
    return _placed(logp_N, tokens, place_N)


def _sequences(logits: Tensor) -> Tensor:
    while logits.dim() < 3:
        logits = logits.unsqueeze(0)
    return logits.flatten(0, -3)


def _chosen(logits: Tensor, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, list[Run], Tensor | None]:
    """The logits, the chosen tokens, their runs and places; a copy of the chosen logits where those are scattered."""
    check_tokens(logits, tokens)
    if mask is None and tokens.dim() == 1:
        return logits, tokens, [(0, tokens.shape[0], 0, 0)], None
    chosen = torch.ones(tokens.shape, dtype=torch.bool) if mask is None else as_bool(mask.cpu())
    if chosen.shape != tokens.shape:
        raise ScoreError(f"mask has shape {list(chosen.shape)}; expected {list(tokens.shape)}, the shape of tokens")
    place_N = chosen.flatten().nonzero().squeeze(1)
    width, count = tokens.shape[-1] if tokens.dim() else 1, len(place_N)
    cuts = (((place_N.diff() != 1) | (place_N[1:] % width == 0)).nonzero().squeeze(1) + 1).tolist()
    there_N = place_N.to(tokens.device, non_blocking=True)  # an index, where a mask would make the host wait
    target_N = tokens.flatten()[there_N]
    if len(cuts) * SMALLEST_RUN > count * logits.shape[-1]:
        return logits[torch.unravel_index(there_N, tokens.shape)], target_N, [(0, count, 0, 0)], there_N
    bounds = [0, *cuts, count] if count else []
    runs = [(a, b, *divmod(int(place_N[a]), width)) for a, b in pairwise(bounds)]
    return logits, target_N, runs, there_N


def _placed(value: Tensor, tokens: Tensor, place_N: Tensor | None) -> Tensor:
    """`[..., N]`, at the places of the chosen tokens, else 0."""
    if place_N is not None:
        value = value.new_zeros((*value.shape[:-1], tokens.numel())).index_copy(-1, place_N, value)
    return value.reshape(value.shape[:-1] + tokens.shape)


def _scores(
    logits: Tensor,
    target_N: Tensor,
    runs: list[Run],
    layout: StatisticsLayout,
    valid_vocab: int | None,
    shard: VocabShard | None,
    kept_WN: Tensor | None,
    keep_nan: bool = False,
) -> TokenScores:
    logits_STV, columns = _sequences(logits), logits.shape[-1]
    real = real_columns(columns, valid_vocab, shard)
    first_column = 0 if shard is None else shard.first_column
    vocab = columns if shard is None and valid_vocab is None else valid_vocab

    def statistics_of(chunk: slice) -> Tensor:
        parts = []
        for begin, end, sequence, first in runs:
            start, stop = max(begin, chunk.start), min(end, chunk.stop)
            if start < stop:
                rows_nV = logits_STV[sequence, first + start - begin : first + stop - begin]
                parts.append(reduce_logits(rows_nV[:, :real], target_N[start:stop], layout, first_column))
                if layout.dropped:
                    parts[-1][-1] = rows_nV[:, real:].float().logsumexp(1)
        return torch.cat(parts, dim=1)

    return scores_by_chunk(
        statistics_of, target_N, layout, vocab=vocab, shard=shard, kept_WN=kept_WN, keep_nan=keep_nan
    )


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target_N: Tensor,
        runs: list[Run],
        layout: StatisticsLayout,
        valid_vocab: int | None,
        shard: VocabShard | None,
    ) -> Tensor:
        kept_WN = None
        if ctx.needs_input_grad[0]:  # 24 bytes per token
            kept_WN = logits.new_empty((layout.width, target_N.shape[0]), dtype=torch.float64)
        scores = _scores(logits, target_N, runs, layout, valid_vocab, shard, kept_WN)
        if kept_WN is not None:
            ctx.save_for_backward(logits, target_N, kept_WN)
        ctx.runs, ctx.layout, ctx.valid_vocab, ctx.shard = runs, layout, valid_vocab, shard
        return scores.logp.squeeze(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, target_N, merged_WN = ctx.saved_tensors
        columns = real_columns(logits.shape[-1], ctx.valid_vocab, ctx.shard)
        column_N = target_N if ctx.shard is None else target_N - ctx.shard.first_column
        create = torch.empty if column_N.numel() == logits.shape[:-1].numel() else torch.zeros
        gradient = create(logits.shape, dtype=logits.dtype, device=logits.device)
        gradient[..., columns:] = 0.0
        logits_STC, gradient_STC = (_sequences(whole)[..., :columns] for whole in (logits, gradient))
        for start, stop, sequence, first in ctx.runs if columns else ():
            own, rows = slice(start, stop), (sequence, slice(first, first + stop - start))
            _write_gradient(
                logits_STC[rows], column_N[own], merged_WN[:, own], ctx.layout, grads[0][own], gradient_STC[rows]
            )
        return gradient, None, None, None, None, None


def _write_gradient(
    logits_NV: Tensor,
    column_N: Tensor,
    merged_WN: Tensor,
    layout: StatisticsLayout,
    grad_N: Tensor,
    gradient_NV: Tensor,
) -> None:
    """Gradient of the log-probability at the layout's one temperature for the logits of one vocabulary shard.

    g_v = grad / T * (1[v = y] - exp((z_v - m) / T) / s), in float32, stored in the dtype of the logits.
    A chunk of tokens at a time: only the gradient itself grows with N. ``column_N`` is the target's column, which
    may be outside the shard; ``merged_WN`` are the statistics of the whole vocabulary.
    """
    if triton_serves(logits_NV):
        from nemo_uecr.scoring.triton_kernels import write_gradient_with_triton  # noqa: PLC0415 (needs Triton)

        with torch.cuda.device_of(logits_NV):  # type: ignore[no-untyped-call]
            write_gradient_with_triton(logits_NV, column_N, merged_WN, layout, grad_N, gradient_NV)
        return
    (temperature,) = layout.temperatures
    tokens, columns = logits_NV.shape
    rows = rows_per_block(columns)
    buffer_CV = torch.empty(min(tokens, rows), columns, dtype=torch.float32, device=logits_NV.device)
    for chunk in chunks_of(column_N):
        scale_n = grad_N[chunk].double() / temperature
        weight_n1 = (-scale_n / merged_WN[layout.sum_row(temperature), chunk]).float().unsqueeze(1)
        column_n = column_N[chunk].long()
        one_n1 = torch.where((column_n >= 0) & (column_n < columns), scale_n, 0.0).float().unsqueeze(1)
        column_n1 = column_n.clamp(0, columns - 1).unsqueeze(1)
        max_n1 = merged_WN[MAX_ROW, chunk].float().unsqueeze(1)
        logits_nV, gradient_nV = logits_NV[chunk], gradient_NV[chunk]
        for start in range(0, logits_nV.shape[0], rows):
            block = slice(start, start + rows)
            slope_CV = buffer_CV[: logits_nV[block].shape[0]].copy_(logits_nV[block]).sub_(max_n1[block])
            if temperature != 1.0:
                slope_CV.div_(temperature)
            slope_CV.exp_().mul_(weight_n1[block])
            gradient_nV[block] = slope_CV.scatter_add_(1, column_n1[block], one_n1[block])
