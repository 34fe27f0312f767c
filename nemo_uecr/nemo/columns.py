"""From the logits of one micro-batch to [B, S] score columns on the CPU.

Shape legend: B = responses, S = tokens of prompt and response, N = scored tokens, V = vocabulary columns of this rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.nemo.layout import MicroBatch, Scored, scored_predictions
from nemo_uecr.nemo.request import ScoreRequest, row_hash
from nemo_uecr.nemo.shift import at_scored_token
from nemo_uecr.nemo.witness import witness
from nemo_uecr.scoring.dense import score_logits
from nemo_uecr.scoring.records import TokenScores, VocabShard


@dataclass(frozen=True)
class ModelParallel:
    """The groups a score is computed over; None where there is one rank.

    Attributes:
        tensor: ranks that share the vocabulary.
        context: ranks that share the sequence.
    """

    tensor: dist.ProcessGroup | None
    context: dist.ProcessGroup | None

    @property
    def tensor_rank(self) -> int:
        """Place of this rank among those that share the vocabulary."""
        return 0 if self.tensor is None else dist.get_rank(self.tensor)

    @property
    def context_size(self) -> int:
        """Number of context-parallel ranks."""
        return 1 if self.context is None else dist.get_world_size(self.context)

    @property
    def context_rank(self) -> int:
        """Place of this rank among them."""
        return 0 if self.context is None else dist.get_rank(self.context)


@torch.no_grad()
def score_columns(
    logits: Tensor, micro: MicroBatch, request: ScoreRequest, parallel: ModelParallel
) -> dict[str, Tensor]:
    """Score every real token of a micro-batch from one forward's logits, left as they are.

    Args:
        logits: [B, S', V] or, packed, [1, T / cp, V]: raw, neither divided nor filtered.
        micro: whose logits these are.
        request: what is asked.
        parallel: the groups.

    Returns:
        [B, S] float32 columns by name on the CPU, 0 where there is no real token to score; ``row_hash`` [B] of the
        token ids that were scored and ``witness`` [B, 2 K + 2], both for the score contract.
    """
    found = scored_predictions(micro, logits.shape[1], cp_rank=parallel.context_rank, cp_size=parallel.context_size)
    logits_TV = logits.flatten(0, 1)
    shape = (micro.ids_BS.shape[0], micro.ids_BS.shape[1] - 1)
    columns = {name: torch.zeros(shape, device=logits.device) for name in request.columns}
    for start in range(0, found.target_N.shape[0], request.chunk_tokens):
        chunk = slice(start, start + request.chunk_tokens)
        for name, value_N in _score_chunk(logits_TV, found, chunk, request, parallel).items():
            columns[name][found.batch_N[chunk], found.column_N[chunk]] = value_N
    if parallel.context is not None:
        for column in columns.values():  # every position was scored by exactly one rank, the others hold 0
            dist.all_reduce(column, group=parallel.context)
    seen = witness(logits_TV, found, micro, request, tensor=parallel.tensor, context=parallel.context)
    answer = {name: at_scored_token(column).cpu() for name, column in columns.items()}
    return answer | {"row_hash": row_hash(micro.ids_BS, micro.lengths_B).cpu(), "witness": seen.cpu()}


def _score_chunk(
    logits_TV: Tensor, found: Scored, chunk: slice, request: ScoreRequest, parallel: ModelParallel
) -> dict[str, Tensor]:
    logits_NV = logits_TV[found.logits_row_N[chunk]]
    target_N = found.target_N[chunk]
    if logits_NV.dtype == torch.float32:
        scores = _scores(logits_NV, target_N, request.temperatures, request.entropy, request, parallel)
        values = dict(zip(request.columns, scores.logp_KN, strict=False))
        return values if scores.entropy_N is None else values | {"entropy": scores.entropy_N}
    return _score_narrow(logits_NV, target_N, request, parallel)


def _score_narrow(
    logits_NV: Tensor, target_N: Tensor, request: ScoreRequest, parallel: ModelParallel
) -> dict[str, Tensor]:
    """16-bit logits: training divides them by the temperature in their own dtype, so scoring does the same."""
    values: dict[str, Tensor] = {}
    plain = 1.0 in request.temperatures or request.entropy
    if plain:
        scores = _scores(logits_NV, target_N, (1.0,), request.entropy, request, parallel)
        if scores.entropy_N is not None:
            values["entropy"] = scores.entropy_N
    for name, temperature in zip(request.columns, request.temperatures, strict=False):
        if temperature == 1.0:
            values[name] = scores.logp_KN[0]
        else:
            divided = logits_NV.div(temperature)
            values[name] = _scores(divided, target_N, (1.0,), False, request, parallel).logp_KN[0]
    return values


def _scores(
    logits_NV: Tensor,
    target_N: Tensor,
    temperatures: tuple[float, ...],
    entropy: bool,
    request: ScoreRequest,
    parallel: ModelParallel,
) -> TokenScores:
    shard = None
    if parallel.tensor is not None:
        shard = VocabShard(dist.get_rank(parallel.tensor) * logits_NV.shape[1], parallel.tensor)
    return score_logits(
        logits_NV,
        target_N,
        temperatures=temperatures,
        entropy=entropy,
        valid_vocab=request.vocabulary,
        shard=shard,
    )
