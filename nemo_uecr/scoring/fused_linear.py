"""Scores from hidden states and the output weight, without the `[N, V]` logits ever existing.

Legend: N tokens, n tokens of one tile, H hidden, V vocabulary rows of the weight (of this rank's shard), v of one
tile, K temperatures, W statistics a token.

The matrix product runs in tiles. On a CPU a tile is a few hundred tokens by about a thousand columns, small
enough for the caches; on a GPU it is a few thousand tokens by the whole shard, where the matrix units are at
their best. Each tile is reduced to W numbers a token, and the tiles' numbers merge like shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.records import StatisticsLayout, TokenScores, VocabShard, check_tokens, real_columns
from nemo_uecr.scoring.reduce import reduce_logits
from nemo_uecr.scoring.statistics import merge_shards, scores_by_chunk

CPU_TILE_TOKENS = 256
CPU_TILE_BYTES = 1 << 20
CPU_WIDE_BYTES = 1 << 20
"""A tile of one factor widened to float32: 1 MiB, as the matrix library packs a copy of each beside it."""
CUDA_TILE_TOKENS = 2048
CUDA_TILE_BYTES = 608 << 20
"""A chunk of 2048 tokens of Qwen3's vocabulary in bfloat16, 594 MiB; in float32 a tile takes half the tokens."""
CUDA_ROUND_TOKENS = 64
MERGED_TILES = 16
"""Tiles whose statistics are merged at a time."""


@dataclass(frozen=True)
class Tile:
    """Tokens and vocabulary columns of one tile of logits, and whether its factors are widened first."""

    tokens: int
    columns: int
    widen: bool


@torch.no_grad()
def score_hidden(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    target_N: Tensor,
    *,
    temperatures: tuple[float, ...],
    entropy: bool,
    valid_vocab: int | None = None,
    logits_dtype: torch.dtype | None = None,
    shard: VocabShard | None = None,
) -> TokenScores:
    """Score given tokens from hidden states: `score_logits` of hidden_NH @ weight_VH.T, tile by tile.

    z = h W^T; then log p_T(y) and H as in `score_logits`. No gradient flows.

    Args:
        hidden_NH: `[N, H]` float32, bfloat16 or float16 hidden states after the final norm; the same on all ranks
            (under sequence parallelism: gathered).
        weight_VH: `[V, H]` output weight of the same dtype; this rank's rows.
        target_N: `[N]` int token ids.
        temperatures: the temperatures T of the log-probabilities, all above 0.
        entropy: whether to return the entropy at temperature 1.
        valid_vocab: number of real rows of the whole weight; rows from there on are padding.
        logits_dtype: precision a logit is kept in between product and statistics. None, the default, is the
            dtype of the hidden states, which gives the very logits an ordinary output layer gives to a
            trainer; torch.float32 keeps the accumulator, and with it what rounding to bfloat16 costs, about
            0.03 nats at a logit of 25. On a CPU it multiplies in float32, several times slower than the
            processor's bfloat16 product; see docs/benchmarks.md.
        shard: this rank's place where a process group shards the rows of the weight: one collective a call.

    Returns:
        The scores, float32 nats; bitwise equal on all ranks of a group.

    Raises:
        ScoreError, NonFiniteScoreError: see `score_logits`.
    """
    check_tokens("hidden_NH", hidden_NH, target_N)
    if weight_VH.dtype != hidden_NH.dtype or logits_dtype not in (None, hidden_NH.dtype, torch.float32):
        raise ScoreError(
            f"hidden_NH is {hidden_NH.dtype}, weight_VH {weight_VH.dtype}, logits_dtype {logits_dtype}; expected "
            "one dtype for both factors, and None, that or float32 for the logits"
        )
    layout, columns = StatisticsLayout(temperatures, entropy), weight_VH.shape[0]
    real_VH = weight_VH[: real_columns(columns, valid_vocab, shard)]
    tile = tile_for(hidden_NH, real_VH.shape[0], logits_dtype)
    first_column = 0 if shard is None else shard.first_column

    def statistics_of(chunk: slice) -> Tensor:
        return _reduce_hidden(hidden_NH[chunk], real_VH, target_N[chunk], layout, first_column, tile)

    return scores_by_chunk(statistics_of, target_N, layout, columns=columns, valid_vocab=valid_vocab, shard=shard)


def tile_for(hidden_NH: Tensor, columns: int, logits_dtype: torch.dtype | None) -> Tile:
    """On a CPU 1 MiB of logits, or two widened factors of 1 MiB; on a GPU all columns, by at most 2048 tokens."""
    widen = logits_dtype == torch.float32 and hidden_NH.dtype != torch.float32
    size = 4 if widen else hidden_NH.element_size()
    if hidden_NH.device.type != "cpu":
        rows = CUDA_TILE_BYTES // (size * max(1, columns)) // CUDA_ROUND_TOKENS * CUDA_ROUND_TOKENS
        return Tile(max(CUDA_ROUND_TOKENS, min(CUDA_TILE_TOKENS, rows)), torch.iinfo(torch.int32).max, widen)
    if widen:
        wide_rows = max(16, CPU_WIDE_BYTES // (4 * max(1, hidden_NH.shape[1])))
        return Tile(min(CPU_TILE_TOKENS, wide_rows), wide_rows, widen)
    return Tile(CPU_TILE_TOKENS, CPU_TILE_BYTES // (CPU_TILE_TOKENS * size), widen)


def _reduce_hidden(
    hidden_NH: Tensor, weight_VH: Tensor, target_N: Tensor, layout: StatisticsLayout, first_column: int, tile: Tile
) -> Tensor:
    """Statistics of hidden_NH @ weight_VH.T, `[W, N]` float64; the weight may have no rows."""
    tokens, columns = min(hidden_NH.shape[0], tile.tokens), min(weight_VH.shape[0], tile.columns)
    dtype = torch.float32 if tile.widen else hidden_NH.dtype
    logits = hidden_NH.new_empty(tokens * columns, dtype=dtype)  # buffers that all tiles share
    # torch has no CPU product that reads bfloat16 and returns its float32 accumulator.
    widened = tile.widen and hidden_NH.device.type == "cpu"
    wide_NH, wide_VH = (
        hidden_NH.new_empty(rows if widened else 0, hidden_NH.shape[1], dtype=dtype) for rows in (tokens, columns)
    )

    def product(hidden_nH: Tensor, weight_vH: Tensor) -> Tensor:
        shape = (hidden_nH.shape[0], weight_vH.shape[0])
        out_nv = logits[: shape[0] * shape[1]].view(shape)
        if widened:
            weight_vH = wide_VH[: shape[1]].copy_(weight_vH)
        elif tile.widen:
            return torch.mm(hidden_nH, weight_vH.T, out_dtype=dtype, out=out_nv)
        return torch.mm(hidden_nH, weight_vH.T, out=out_nv)

    merged_WN = hidden_NH.new_empty((layout.width, hidden_NH.shape[0]), dtype=torch.float64)
    for start in range(0, hidden_NH.shape[0], tile.tokens):
        rows = slice(start, start + tile.tokens)
        hidden_nH = hidden_NH[rows]
        if widened:
            hidden_nH = wide_NH[: hidden_nH.shape[0]].copy_(hidden_nH)
        parts: list[Tensor] = []
        for first in range(0, max(weight_VH.shape[0], 1), tile.columns):
            logits_nv = product(hidden_nH, weight_VH[first : first + tile.columns])
            parts.append(reduce_logits(logits_nv, target_N[rows], layout, first_column + first))
            if len(parts) == MERGED_TILES:
                parts = [merge_shards(torch.stack(parts), layout)]
        merged_WN[:, rows] = merge_shards(torch.stack(parts), layout)
    return merged_WN
