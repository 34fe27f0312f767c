"""From the statistics of vocabulary shards to scores.

Legend: R shards in rank order, N tokens, W statistics a token, K temperatures.
H = log s(1) - t / s(1) is never negative, as s >= 1 and t <= 0.
Merging is done in float64 on `[R, N]` numbers, so that the only float32 rounding left is that of the
statistics and of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from nemo_uecr.scoring.errors import NonFiniteScoreError, TargetOutOfVocabularyError
from nemo_uecr.scoring.records import MAX_ROW, TARGET_ROW, StatisticsLayout, TokenScores

CPU_CHUNK_TOKENS = 1 << 12
CUDA_CHUNK_TOKENS = 1 << 16
"""Tokens reduced and merged at a time: within a few hundred KiB on a CPU, a few MiB on a GPU."""


def merge_shards(stats_RWN: Tensor, layout: StatisticsLayout) -> Tensor:
    """Merge the statistics of vocabulary shards, in rank order, into those of the whole vocabulary.

    m = max_r m_r;  d_r = m_r - m;  s(T) = sum_r s_r(T) exp(d_r / T);  t = sum_r (t_r + d_r s_r) exp(d_r);
    y = max_r y_r, as a shard without the target reports y_r = -inf.
    A shard without a real column has m_r = -inf and s_r = t_r = 0 and adds exactly nothing.

    Args:
        stats_RWN: `[R, W, N]` float32, row meanings in `StatisticsLayout`.
        layout: which statistics the W rows hold.

    Returns:
        `[W, N]` float64.
    """
    stats = stats_RWN.double()
    merged = stats.new_empty(stats.shape[1:])
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
    merged_WN: Tensor, logp_KN: Tensor, target_N: Tensor, layout: StatisticsLayout, first_token: int, vocab: int
) -> None:
    """Refuse targets outside the vocabulary and tokens with non-finite logits or scores, from the statistics.

    Args:
        merged_WN: `[W, N]` statistics of the whole vocabulary.
        logp_KN: `[K, N]` float32 log-probabilities made of them.
        target_N: `[N]` token ids.
        layout: which statistics the W rows hold.
        first_token: number of the first of these tokens in the call, for the message.
        vocab: number of real columns of the whole vocabulary.

    Raises:
        TargetOutOfVocabularyError: a target is not in [0, vocab).
        NonFiniteScoreError: a logit is NaN or +inf, the target's own logit is -inf, or the log-probability
            has no float32.
    """
    if bool(merged_WN.isfinite().all() & logp_KN.isfinite().all()):  # one question, as a GPU is waited for
        return
    outside_N = (target_N < 0) | (target_N >= vocab)
    if bool(outside_N.any()):
        token = int(outside_N.nonzero()[0])
        raise TargetOutOfVocabularyError(
            f"target of token {first_token + token} is {int(target_N[token])}, expected 0 to {vocab - 1}; "
            "check tokenizer and vocabulary size"
        )
    unsound_N = ~merged_WN.isfinite().all(0)
    if not bool(unsound_N.any()):
        row, token = (int(i) for i in (~logp_KN.isfinite()).nonzero()[0])
        raise NonFiniteScoreError(
            f"log-probability of token {first_token + token} at temperature {layout.temperatures[row]} is beyond "
            f"float32: the largest logit is {float(merged_WN[MAX_ROW, token])}, that of target "
            f"{int(target_N[token])} is {float(merged_WN[TARGET_ROW, token])}; check the model that made them"
        )
    token = int(unsound_N.nonzero()[0])
    raise NonFiniteScoreError(
        f"logits of token {first_token + token} are not finite (largest {float(merged_WN[MAX_ROW, token])}, "
        f"target {int(target_N[token])} has {float(merged_WN[TARGET_ROW, token])}); "
        "check the model that made them"
    )


def log_probabilities(merged_WN: Tensor, layout: StatisticsLayout) -> Tensor:
    """Log-probability of each target at each temperature.

    log p_T = (y - m) / T - log s(T).

    Args:
        merged_WN: `[W, N]` float64 statistics of the whole vocabulary.
        layout: which statistics the W rows hold.

    Returns:
        `[K, N]` float32 nats, in the order of the layout's temperatures.
    """
    shifted_N = merged_WN[TARGET_ROW] - merged_WN[MAX_ROW]
    logp = [shifted_N / t - merged_WN[layout.sum_row(t)].log() for t in layout.temperatures]
    return torch.stack(logp).float() if logp else shifted_N.new_empty(0, shifted_N.shape[0]).float()


def room_for_gradient(logits_NV: Tensor, layout: StatisticsLayout) -> Tensor:
    """`[W, N]` float64 for the merged statistics that the gradient needs: 24 bytes a token at one temperature."""
    return torch.empty(layout.width, logits_NV.shape[0], dtype=torch.float64, device=logits_NV.device)


def chunks_of(target_N: Tensor) -> Iterator[slice]:
    """Slices of tokens, each small enough for a workspace that does not grow with N."""
    tokens, step = target_N.shape[0], CUDA_CHUNK_TOKENS if target_N.is_cuda else CPU_CHUNK_TOKENS
    return (slice(start, min(start + step, tokens)) for start in range(0, tokens, step))


def scores_by_chunk(
    stats_of: Callable[[slice], Tensor],
    target_N: Tensor,
    layout: StatisticsLayout,
    top1: bool,
    vocab: int,
    kept_WN: Tensor | None = None,
) -> TokenScores:
    """Scores of all tokens, a chunk of tokens at a time so that the workspace does not grow with N.

    Args:
        stats_of: gives the `[R, W, n]` float32 statistics of a slice of n tokens.
        target_N: `[N]` token ids.
        layout: which statistics the W rows hold.
        top1: whether to say if the target attains the largest logit (ties count).
        vocab: number of real columns of the whole vocabulary.
        kept_WN: `[W, N]` float64, receives the merged statistics; None where nobody needs them afterwards.

    Returns:
        The scores, float32 nats.

    Raises:
        TargetOutOfVocabularyError, NonFiniteScoreError: see `check_statistics`.
    """
    tokens, device = target_N.shape[0], target_N.device
    logp_KN = torch.empty(len(layout.temperatures), tokens, dtype=torch.float32, device=device)
    entropy_N = torch.empty(tokens, dtype=torch.float32, device=device) if layout.entropy else None
    top1_N = torch.empty(tokens, dtype=torch.bool, device=device) if top1 else None
    for chunk in chunks_of(target_N):
        merged_WN = merge_shards(stats_of(chunk), layout)
        logp_Kn = log_probabilities(merged_WN, layout)
        logp_KN[:, chunk] = logp_Kn
        if kept_WN is not None:
            kept_WN[:, chunk] = merged_WN
        if entropy_N is not None:
            sum_N = merged_WN[layout.sum_row(1.0)]
            entropy_N[chunk] = sum_N.log() - merged_WN[layout.weighted_row] / sum_N
        if top1_N is not None:
            top1_N[chunk] = merged_WN[TARGET_ROW] == merged_WN[MAX_ROW]
        # Last, as a GPU is waited for only here.
        check_statistics(merged_WN, logp_Kn, target_N[chunk], layout, chunk.start, vocab)
    return TokenScores(logp_KN, entropy_N, top1_N)
