"""From the statistics of vocabulary shards to scores, with one collective per call over a process group.

Legend: R ranks, each with a shard, N tokens, n tokens of one chunk, W statistics per token, K temperatures.

Each rank reduces its shard to W float32 numbers per token (16 bytes; 20 with a second temperature), one all-gather
brings them together, and every rank merges them in rank order: all ranks hold identical bits. Merging is done in
float64, so that the only float32 rounding left is that of the statistics and of the result.

Ranks that bring different sizes abort the process with gloo and wait for the timeout with NCCL; ranks with other
targets get wrong numbers. With `TORCH_DISTRIBUTED_DEBUG=DETAIL` torch compares the sizes before each collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.records import (
    MAX_ROW,
    TARGET_ROW,
    NonFiniteScoreError,
    StatisticsLayout,
    TokenScores,
    VocabShard,
)
from nemo_uecr.scoring.reduce import triton_serves

CPU_CHUNK_TOKENS = 1 << 12
CUDA_CHUNK_TOKENS = 1 << 16
"""Tokens reduced and merged at a time: within a few hundred KiB on a CPU, a few MiB on a GPU."""
#: Within `deferred_checks`: which tokens have finite scores, and the check that names one that has not.
_deferred: list[tuple[Tensor, Callable[[], None]]] | None = None

# torch 2.13 renamed the collective that gathers into one tensor.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def chunks_of(target_N: Tensor) -> list[slice]:
    """Slices of tokens, each small enough for a workspace that does not grow with N."""
    tokens, step = target_N.shape[0], CUDA_CHUNK_TOKENS if target_N.is_cuda else CPU_CHUNK_TOKENS
    return [slice(start, min(start + step, tokens)) for start in range(0, tokens, step)]


def scores_by_chunk(
    statistics_of: Callable[[slice], Tensor],
    target_N: Tensor,
    layout: StatisticsLayout,
    *,
    vocab: int | None,
    shard: VocabShard | None,
    kept_WN: Tensor | None = None,
    keep_nan: bool = False,
) -> TokenScores:
    """Scores of all tokens, a chunk of tokens at a time so that the workspace does not grow with N.

    log p_T = (y - m) / T - log s(T);  H = log s(1) - t / s(1), never negative, as s >= 1 and t <= 0;
    dropped mass = sigmoid(l - m - log s(1)), l the log sum of the padding columns.

    ``statistics_of`` gives the `[W, n]` statistics of this rank's columns for a slice of n tokens; ``vocab`` is the
    number of columns on all ranks, None where no rank knows it. ``kept_WN``, where the backward needs it, receives the
    merged statistics in float64. With ``keep_nan`` a token whose scores are not finite gets NaN in place of an error.
    """
    tokens, device = target_N.shape[0], target_N.device
    logp_KN = torch.empty(len(layout.temperatures), tokens, dtype=torch.float32, device=device)
    entropy_N = torch.empty(tokens, dtype=torch.float32, device=device) if layout.entropy else None
    dropped_N = torch.empty(tokens, dtype=torch.float32, device=device) if layout.dropped else None
    gathered_RWN = None if shard is None else gathered_statistics(statistics_of, target_N, layout, shard)
    for chunk in chunks_of(target_N):
        stats_RWn = statistics_of(chunk).unsqueeze(0) if gathered_RWN is None else gathered_RWN[:, :, chunk]
        logp_Kn, entropy_n = logp_KN[:, chunk], None if entropy_N is None else entropy_N[chunk]
        if triton_serves(stats_RWn):
            from nemo_uecr.scoring.triton_kernels import finish_with_triton  # noqa: PLC0415 (needs Triton)

            with torch.cuda.device_of(stats_RWn):  # type: ignore[no-untyped-call]
                merged_Wn, finite_n = finish_with_triton(stats_RWn, layout, logp_Kn, entropy_n)
        else:
            merged_Wn, finite_n = _finish(stats_RWn, layout, logp_Kn, entropy_n)
        if kept_WN is not None:
            kept_WN[:, chunk] = merged_Wn
        if dropped_N is not None:
            kept_n = merged_Wn[MAX_ROW] + merged_Wn[layout.sum_row(1.0)].log()
            dropped_N[chunk] = (stats_RWn[:, -1].double().logsumexp(0) - kept_n).sigmoid()
        if keep_nan:
            for scores_Kn in (logp_KN, entropy_N, dropped_N):
                if scores_Kn is not None:
                    scores_Kn[..., chunk].masked_fill_(~finite_n, torch.nan)
        check = partial(check_statistics, merged_Wn, finite_n, target_N[chunk], chunk.start, vocab, keep_nan)
        if _deferred is None:  # last, because only this waits for a GPU
            check()
        else:
            _deferred.append((finite_n, check))
    return TokenScores(layout.temperatures, logp_KN, entropy_N, dropped_N)


def _finish(
    stats_RWN: Tensor, layout: StatisticsLayout, logp_KN: Tensor, entropy_N: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Write the scores, and return the merged statistics and `[N]` whether all of it is finite."""
    merged_WN = merge_shards(stats_RWN, layout)
    gap_N = merged_WN[TARGET_ROW] - merged_WN[MAX_ROW]
    for row, temperature in enumerate(layout.temperatures):
        logp_KN[row] = gap_N / temperature - merged_WN[layout.sum_row(temperature)].log()
    if entropy_N is not None:
        sum_N = merged_WN[layout.sum_row(1.0)]
        torch.sub(sum_N.log(), merged_WN[layout.weighted_row] / sum_N, out=entropy_N)
    return merged_WN, merged_WN.isfinite().all(0) & logp_KN.isfinite().all(0)


@contextmanager
def deferred_checks() -> Iterator[None]:
    """Check the scores of all calls within at its end: one wait for a GPU in place of one a call.

    Until then a call may return scores that are not finite. The error is that of the first call that would raise.
    """
    global _deferred
    before, _deferred = _deferred, []
    try:
        yield
        checks = _deferred
    finally:
        _deferred = before
    if checks and not bool(torch.cat([finite_n for finite_n, _ in checks]).all()):
        for _, check in checks:
            check()


def merge_shards(stats_RWN: Tensor, layout: StatisticsLayout) -> Tensor:
    """Merge the statistics of vocabulary shards, in rank order, into those of the whole vocabulary.

    m = max_r m_r;  d_r = m_r - m;  s(T) = sum_r s_r(T) exp(d_r / T);  t = sum_r (t_r + d_r s_r) exp(d_r);
    y = max_r y_r, as a shard without the target reports y_r = -inf.
    A shard without a real column has m_r = -inf and s_r = t_r = 0 and adds exactly nothing. `[W, N]` float64.
    """
    stats = stats_RWN.double()
    merged = stats.new_empty((layout.weighted_row + int(layout.entropy), stats.shape[2]))
    merged[MAX_ROW] = stats[:, MAX_ROW].amax(0)
    merged[TARGET_ROW] = stats[:, TARGET_ROW].amax(0)
    max_RN = stats[:, MAX_ROW]
    shift_RN = torch.where(max_RN == merged[MAX_ROW], 0.0, max_RN - merged[MAX_ROW])  # 0 also for two -inf
    for temperature in layout.sum_temperatures:
        row = layout.sum_row(temperature)
        merged[row] = (stats[:, row] * (shift_RN / temperature).exp()).sum(0)
    if layout.entropy:
        sum_RN = stats[:, layout.sum_row(1.0)]
        moved_RN = torch.where(sum_RN == 0.0, 0.0, stats[:, layout.weighted_row] + shift_RN * sum_RN)
        merged[layout.weighted_row] = (moved_RN * shift_RN.exp()).sum(0)
    return merged


def check_statistics(
    merged_WN: Tensor, finite_N: Tensor, target_N: Tensor, first_token: int, vocab: int | None, keep_nan: bool
) -> None:
    """Refuse targets outside the vocabulary and, unless NaN is kept, tokens with non-finite logits or scores.

    ``first_token`` is the number of the first of them in the call.
    """
    if bool(finite_N.all()):  # waits for a GPU
        return
    outside_N = (target_N < 0) | (target_N >= (torch.inf if vocab is None else vocab))
    if bool(outside_N.any()):
        token = int(outside_N.nonzero()[0])
        raise ScoreError(
            f"target of token {first_token + token} of those scored is {int(target_N[token])}, expected a token id of "
            f"the vocabulary of {vocab} columns; check tokenizer, vocabulary size and valid_vocab"
        )
    if keep_nan:
        return
    token = int((~finite_N).nonzero()[0])
    raise NonFiniteScoreError(
        f"logits of token {first_token + token} of those scored give no finite score: the largest is "
        f"{float(merged_WN[MAX_ROW, token])}, that of target {int(target_N[token])} is "
        f"{float(merged_WN[TARGET_ROW, token])}; check the model that made them"
    )


def gathered_statistics(
    statistics_of: Callable[[slice], Tensor], target_N: Tensor, layout: StatisticsLayout, shard: VocabShard
) -> Tensor:
    """Reduce this rank's shard and gather all ranks' `[R, W, N]` statistics, in rank order, with one collective."""
    rank, size = dist.get_rank(shard.group), dist.get_world_size(shard.group)
    gathered_RWN = target_N.new_empty((size, layout.width, target_N.shape[0]), dtype=torch.float32)
    for chunk in chunks_of(target_N):
        gathered_RWN[rank, :, chunk] = statistics_of(chunk)
    if size > 1:
        _all_gather(gathered_RWN.flatten(), gathered_RWN[rank].flatten(), group=shard.group)
    return gathered_RWN
