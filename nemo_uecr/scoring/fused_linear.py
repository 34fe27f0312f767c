"""Scores from hidden states and the output weight, without the `[N, V]` logits ever existing.

Legend: R ranks, N tokens, n tokens of one tile, H hidden, V vocabulary rows of the weight (of this rank's
shard), v of one tile, G tiles of one group, K temperatures, W statistics a token.

The matrix product runs in tiles. On a CPU a tile is a few hundred tokens by about a thousand columns, small
enough for the caches; on a GPU it is a few thousand tokens by the whole shard, where the matrix units are at
their best. Each tile is reduced to W numbers a token, and the tiles' numbers merge like shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.scoring.checks import check_tokens, check_vocab, check_weight, statistics_layout, switch
from nemo_uecr.scoring.records import StatisticsLayout, TokenScores
from nemo_uecr.scoring.reduce import reduce_logits
from nemo_uecr.scoring.shards import Asked, Shard, ShardPlace, merged_scores, sharded_statistics
from nemo_uecr.scoring.statistics import merge_shards, scores_by_chunk

CPU_TILE_TOKENS = 256
CPU_TILE_BYTES = 1 << 20
CPU_WIDE_BYTES = 1 << 20
"""A tile of one factor widened to float32: 1 MiB, as the matrix library packs a copy of each beside it."""
CUDA_TILE_TOKENS = 2048
CUDA_TILE_BYTES = 608 << 20
"""A chunk of 2048 tokens of Qwen3's vocabulary in bfloat16, 594 MiB; in float32 a tile takes half the tokens."""
CUDA_ROUND_TOKENS = 64
GROUP_TILES = 16
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
    top1: bool = False,
    valid_vocab: int | None = None,
    logits_dtype: torch.dtype | None = None,
) -> TokenScores:
    """Score given tokens from hidden states: `score_logits` of hidden_NH @ weight_VH.T, tile by tile.

    z = h W^T; then log p_T(y) and H as in `score_logits`. No gradient flows.

    Args:
        hidden_NH: `[N, H]` float32, bfloat16 or float16 hidden states after the final norm.
        weight_VH: `[V, H]` output weight of the same dtype.
        target_N: `[N]` int token ids.
        temperatures: the temperatures T of the log-probabilities, all above 0.
        entropy: whether to return the entropy at temperature 1.
        top1: whether to return if the target attains the largest logit.
        valid_vocab: number of real rows of the weight; rows from there on are padding.
        logits_dtype: precision a logit is kept in between product and statistics. None, the default, is the
            dtype of the hidden states, which gives the very logits an ordinary output layer gives to a
            trainer; torch.float32 keeps the accumulator, and with it what rounding to bfloat16 costs, about
            0.03 nats at a logit of 25. On a CPU it multiplies in float32, several times slower than the
            processor's bfloat16 product; see docs/benchmarks.md.

    Returns:
        The scores, float32 nats.

    Raises:
        ScoringInputError: wrong shape, dtype or temperature, or no token.
        TargetOutOfVocabularyError: a target outside the vocabulary.
        NonFiniteScoreError: a NaN or +inf logit, a target of logit -inf, or a log-probability beyond float32.
    """
    check_tokens("hidden_NH", hidden_NH, target_N)
    check_weight(hidden_NH, weight_VH, logits_dtype)
    vocab = check_vocab(weight_VH.shape[0], valid_vocab)
    layout = statistics_layout(temperatures, entropy)
    switch("top1", top1)
    tile = tile_for(hidden_NH, vocab, logits_dtype)
    real_VH = weight_VH[:vocab]

    def stats_of(chunk: slice) -> Tensor:
        return reduce_hidden(hidden_NH[chunk], real_VH, target_N[chunk], layout, 0, tile).unsqueeze(0)

    return scores_by_chunk(stats_of, target_N, layout, top1, vocab)


@torch.no_grad()
def score_hidden_vocab_parallel(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    target_N: Tensor,
    *,
    first_column: int,
    group: dist.ProcessGroup | None,
    temperatures: tuple[float, ...],
    entropy: bool,
    top1: bool = False,
    valid_vocab: int | None = None,
    logits_dtype: torch.dtype | None = None,
) -> TokenScores:
    """`score_hidden` over a process group that shards the rows of the output weight; one collective a call.

    Args:
        hidden_NH: `[N, H]` hidden states of all tokens, the same on all ranks (under sequence parallelism:
            gathered).
        weight_VH: `[V, H]` this rank's rows of the output weight.
        target_N: `[N]` int token ids of the whole vocabulary, the same on all ranks.
        first_column: token id of this rank's first row; shards tile the vocabulary in rank order.
        group: see `score_vocab_parallel`.
        temperatures: see `score_hidden`.
        entropy: see `score_hidden`.
        top1: see `score_hidden`.
        valid_vocab: number of real rows of the whole weight.
        logits_dtype: see `score_hidden`.

    Returns:
        The scores, float32 nats, bitwise equal on all ranks.

    Raises:
        ScoringInputError, ShardMismatchError, TargetOutOfVocabularyError, NonFiniteScoreError: see
            `score_vocab_parallel`.
    """
    place, asked = ShardPlace(first_column, group, valid_vocab), Asked(temperatures, entropy, top1)

    def reduce(chunk: slice, layout: StatisticsLayout, stats_Wn: Tensor) -> None:
        real_VH = weight_VH[: place.real_columns(weight_VH.shape[0])]
        tile = tile_for(hidden_NH, real_VH.shape[0], logits_dtype)
        stats_Wn.copy_(reduce_hidden(hidden_NH[chunk], real_VH, target_N[chunk], layout, first_column, tile))

    def open_shard() -> Shard:
        check_weight(hidden_NH, weight_VH, logits_dtype)
        return Shard(weight_VH.shape[0], hidden_NH.shape[1], logits_dtype or hidden_NH.dtype, reduce)

    gathered_RWN, layout, vocab = sharded_statistics("hidden_NH", hidden_NH, target_N, place, asked, open_shard)
    return merged_scores(gathered_RWN, target_N, layout, top1, vocab)


def tile_for(hidden_NH: Tensor, columns: int, logits_dtype: torch.dtype | None) -> Tile:
    """The tile for this device and precision.

    On a CPU it is 1 MiB of logits, or two widened factors of 1 MiB; on a GPU all columns of the shard by as
    many tokens as 608 MiB of logits hold, at most 2048.
    """
    widen = logits_dtype == torch.float32 and hidden_NH.dtype != torch.float32
    size = 4 if widen else hidden_NH.element_size()
    if hidden_NH.device.type != "cpu":
        rows = CUDA_TILE_BYTES // (size * max(1, columns)) // CUDA_ROUND_TOKENS * CUDA_ROUND_TOKENS
        return Tile(max(CUDA_ROUND_TOKENS, min(CUDA_TILE_TOKENS, rows)), torch.iinfo(torch.int32).max, widen)
    if widen:
        wide_rows = max(16, CPU_WIDE_BYTES // (4 * max(1, hidden_NH.shape[1])))
        return Tile(min(CPU_TILE_TOKENS, wide_rows), wide_rows, widen)
    return Tile(CPU_TILE_TOKENS, CPU_TILE_BYTES // (CPU_TILE_TOKENS * size), widen)


def reduce_hidden(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    target_N: Tensor,
    layout: StatisticsLayout,
    first_column: int,
    tile: Tile,
) -> Tensor:
    """Statistics of hidden_NH @ weight_VH.T, `[W, N]` float64; the weight may have no rows."""
    tokens, columns = hidden_NH.shape[0], weight_VH.shape[0]
    merged_WN = torch.empty(layout.width, tokens, dtype=torch.float64, device=hidden_NH.device)
    product = TileProduct(tile, min(tokens, tile.tokens), min(columns, tile.columns), hidden_NH)
    for start in range(0, tokens, tile.tokens):
        rows = slice(start, min(start + tile.tokens, tokens))
        hidden_nH = product.widened(hidden_NH[rows])
        groups = []
        for first in range(0, max(columns, 1), GROUP_TILES * tile.columns):
            group_VH = weight_VH[first : first + GROUP_TILES * tile.columns]
            stats_GWn = _group_statistics(product, hidden_nH, group_VH, target_N[rows], layout, first_column + first)
            groups.append(merge_shards(stats_GWn, layout))
        merged_WN[:, rows] = merge_shards(torch.stack(groups), layout) if len(groups) > 1 else groups[0]
    return merged_WN


def _group_statistics(
    product: TileProduct,
    hidden_nH: Tensor,
    group_VH: Tensor,
    target_n: Tensor,
    layout: StatisticsLayout,
    first_column: int,
) -> Tensor:
    """Statistics of each tile of one group, `[G, W, n]` float32."""
    tiles = torch.split(group_VH, product.tile.columns) if group_VH.shape[0] else (group_VH,)
    shape = (len(tiles), layout.width, hidden_nH.shape[0])
    stats_GWn = torch.empty(shape, dtype=torch.float32, device=hidden_nH.device)
    for index, tile_vH in enumerate(tiles):
        logits_nv = product.logits(hidden_nH, tile_vH)
        reduce_logits(logits_nv, target_n, layout, first_column + index * product.tile.columns, stats_GWn[index])
    return stats_GWn


class TileProduct:
    """The matrix product of one tile, into buffers that all tiles share."""

    def __init__(self, tile: Tile, tokens: int, columns: int, like: Tensor) -> None:
        self.tile = tile
        self._wide_on_cpu = tile.widen and like.device.type == "cpu"
        dtype = torch.float32 if tile.widen else like.dtype
        self._logits = torch.empty(tokens * columns, dtype=dtype, device=like.device)
        wide_rows = (tokens, columns) if self._wide_on_cpu else (0, 0)
        self._hidden, self._weight = (
            torch.empty(rows, like.shape[1], dtype=torch.float32, device=like.device) for rows in wide_rows
        )

    def widened(self, hidden_nH: Tensor) -> Tensor:
        """The hidden states in the dtype of the product's factors."""
        return self._hidden[: hidden_nH.shape[0]].copy_(hidden_nH) if self._wide_on_cpu else hidden_nH

    def logits(self, hidden_nH: Tensor, weight_vH: Tensor) -> Tensor:
        """`[n, v]` logits of one tile, valid until the next call."""
        shape = (hidden_nH.shape[0], weight_vH.shape[0])
        out_nv = self._logits[: shape[0] * shape[1]].view(shape)
        if self._wide_on_cpu:
            weight_vH = self._weight[: shape[1]].copy_(weight_vH)
        if self.tile.widen and not self._wide_on_cpu:
            return torch.mm(hidden_nH, weight_vH.T, out_dtype=torch.float32, out=out_nv)
        return torch.mm(hidden_nH, weight_vH.T, out=out_nv)
