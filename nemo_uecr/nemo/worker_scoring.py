"""All scores of a batch from one forward of a Megatron worker: at T_r for the PPO ratio, at 1 for the method.

The logits at position t predict the token at t + 1. That shift is made here and nowhere else: every score that leaves
this module is at the token it scores, so that column t of a [B, S] score belongs to ``ids[t]``, and column 0 is 0,
because nothing predicts the first token.

Each answer carries a row hash and a spot check, which `score_checks` compares where the scores are used. The spot check
scores one token per response again: from its whole row of logits, divided by the temperature and normalised by torch
alone. It exposes a worker that divides by another temperature, filters, counts other columns or shifts its scores. The
same row gives the most likely token ids, which show how far student and teacher agree.

Shape legend: B = responses (of the worker or of a micro-batch), S = tokens of prompt and response (padded), N = tokens
scored, T = rows of flattened logits, V = vocabulary columns of this rank, K = most likely tokens, W = numbers of a spot
check.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from nemo_uecr.core.agreement import TOP
from nemo_uecr.scoring.dense import token_scores
from nemo_uecr.scoring.records import VocabShard

#: Multiplier of the row hash; odd, so that no token is ever multiplied to zero in 64-bit arithmetic.
HASH_MULTIPLIER = 6364136223846793005


@dataclass(frozen=True)
class ScoreRequest:
    """What a scoring pass is asked: log-probabilities, and perhaps the entropy at temperature 1."""

    temperatures: Mapping[str, float]  # of each log-probability, by the name of its column
    entropy: bool
    vocabulary: int  # columns that count; further ones carry no probability
    chunk_tokens: int  # scored at once; bounds memory
    dropped: bool = False  # whether the probability that the further ones would have is asked

    def to_teacher(self, columns: int) -> ScoreRequest:
        """The same request to a teacher with ``columns`` output columns, over those that it shares with the student."""
        return replace(self, vocabulary=min(columns, self.vocabulary), dropped=columns > self.vocabulary)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the [B, S] columns of the answer."""
        return (*self.temperatures, *(("entropy",) if self.entropy else ()), *(("dropped",) if self.dropped else ()))


class MicroBatch(NamedTuple):
    """Token ids of a micro-batch, right-padded, and how its packed logits are laid out."""

    ids_BS: Tensor
    lengths_B: Tensor
    starts: Tensor  # [B + 1] where each sequence begins in the logits, padding included


class ModelParallel(NamedTuple):
    """The ranks that share the vocabulary, and those that share the sequence; None where there is one."""

    tensor: dist.ProcessGroup | None
    context: dist.ProcessGroup | None


class Predictions(NamedTuple):
    """The N predictions of real tokens whose logits this rank holds."""

    logits_row_N: Tensor  # in the logits, flattened over batch and sequence
    batch_N: Tensor
    column_N: Tensor  # predicting position t
    target_N: Tensor  # the token at t + 1


#: From one micro-batch's raw logits to its columns.
Columns = Callable[[Tensor, MicroBatch], dict[str, Tensor]]
#: Runs the model over a batch and calls the `Columns` on each micro-batch: their answers in order, none on all
#: pipeline stages but the last.
Forward = Callable[[Mapping[str, Any], Columns], list[dict[str, Tensor]]]


@torch.no_grad()
def score_tokens(
    forward: Forward, data: Mapping[str, Any], request: ScoreRequest, parallel: ModelParallel
) -> dict[str, Tensor] | None:
    """Answer a request about ``input_ids`` [B, S] and ``input_lengths`` [B] from one forward.

    Every rank of the last stage has the same answer, earlier ones None: the [B, S] columns in nats on the CPU, for the
    score checks ``row_hash`` [B] and ``spot_check`` [B, W], and ``top_ids`` [B, K] at the token of the spot check.
    """
    parts = forward(data, lambda logits, micro: score_columns(logits, micro, request, parallel))
    if not parts:
        return None
    width = data["input_ids"].shape[1]
    answer = {name: torch.cat([part[name] for part in parts]) for name in ("row_hash", "spot_check", "top_ids")}
    for name in request.columns:
        answer[name] = torch.cat([pad(part[name], (0, width - part[name].shape[1])) for part in parts])
    return answer


@torch.no_grad()
def score_columns(
    logits: Tensor, micro: MicroBatch, request: ScoreRequest, parallel: ModelParallel
) -> dict[str, Tensor]:
    """Score every real token of a micro-batch from its raw logits [1, T / cp, V].

    Returns:
        [B, S] float32 columns by name on the CPU, 0 where there is no real token to score; ``row_hash`` [B] of the
        token ids that were scored, ``spot_check`` [B, W] and ``top_ids`` [B, K].
    """
    context = parallel.context
    cp_rank, cp_size = (0, 1) if context is None else (dist.get_rank(context), dist.get_world_size(context))
    here = predictions_here(micro, cp_rank=cp_rank, cp_size=cp_size)
    logits_TV, shape = logits.flatten(0, 1), micro.ids_BS.shape
    columns = {name: torch.zeros(shape, dtype=torch.float32, device=logits.device) for name in request.columns}
    for start in range(0, here.target_N.shape[0], request.chunk_tokens):
        chunk = slice(start, start + request.chunk_tokens)
        scores = _score_chunk(logits_TV[here.logits_row_N[chunk]], here.target_N[chunk], request, parallel.tensor)
        for name, value_N in scores.items():
            columns[name][here.batch_N[chunk], here.column_N[chunk] + 1] = value_N
    columns["spot_check"], columns["top_ids"] = _spot_check(logits_TV, here, micro, request, parallel.tensor)
    if context is not None:
        for column in columns.values():  # every position is one rank's; the others hold 0
            dist.all_reduce(column, group=context)
    columns["row_hash"] = row_hash(micro.ids_BS, micro.lengths_B)
    return {name: column.cpu() for name, column in columns.items()}


def predictions_here(micro: MicroBatch, *, cp_rank: int, cp_size: int) -> Predictions:
    """Every prediction of a real token whose logits are on this rank.

    Context parallelism cuts a packed sequence into 2 cp_size equal pieces; rank r holds pieces r and
    2 cp_size - 1 - r, side by side, so that causal attention costs every rank the same.
    """
    position_S1 = torch.arange(micro.ids_BS.shape[1] - 1, device=micro.ids_BS.device)
    batch_N, column_N = (position_S1 < (micro.lengths_B - 1)[:, None]).nonzero(as_tuple=True)
    target_N = micro.ids_BS[batch_N, column_N + 1]
    starts = micro.starts.to(batch_N)
    begin_N = starts[batch_N]
    if cp_size == 1:
        return Predictions(begin_N + column_N, batch_N, column_N, target_N)
    length_N = (starts[batch_N + 1] - begin_N) // (2 * cp_size)
    piece_N = column_N // length_N
    second_N = piece_N == 2 * cp_size - 1 - cp_rank
    row_N = begin_N // cp_size + column_N % length_N + torch.where(second_N, length_N, 0)
    here_N = second_N | (piece_N == cp_rank)
    return Predictions(*(each[here_N] for each in (row_N, batch_N, column_N, target_N)))


def _score_chunk(
    logits_NV: Tensor, target_N: Tensor, request: ScoreRequest, group: dist.ProcessGroup | None
) -> dict[str, Tensor]:
    """The values of ``request.columns`` by name.

    Training divides 16-bit logits by the temperature in their own dtype, so scoring does the same: dividing in float32
    would put the first PPO ratio off 1.
    """
    shard = None if group is None else VocabShard(dist.get_rank(group) * logits_NV.shape[1], group)
    scores = functools.partial(token_scores, tokens=target_N, valid_vocab=request.vocabulary, shard=shard)
    raw = scores(logits_NV, entropy=request.entropy, dropped=request.dropped)
    columns = {
        name: (raw if temperature == 1.0 else scores(logits_NV.div(temperature))).at(1.0)
        for name, temperature in request.temperatures.items()
    }
    more = {"entropy": raw.entropy, "dropped": raw.dropped}
    return columns | {name: value_N for name, value_N in more.items() if value_N is not None}


def row_hash(ids_BS: Tensor, lengths_B: Tensor) -> Tensor:
    """[B] int64 hash of each row's first ``length`` token ids; order matters, padding does not.

    ``h = sum_t (id_t + 1) m^(t + 1)`` modulo 2^64.
    """
    position_S = torch.arange(ids_BS.shape[1], device=ids_BS.device)
    power_S = torch.full_like(position_S, HASH_MULTIPLIER).cumprod(0)
    return torch.where(position_S < lengths_B[:, None], (ids_BS.long() + 1) * power_S, 0).sum(dim=1)


def spot_checked_token(lengths_B: Tensor) -> Tensor:
    """[B] column of the token that is scored twice: the middle one; 0, which nobody scores, in a row of one."""
    return lengths_B // 2


def _spot_check(
    logits_TV: Tensor, here: Predictions, micro: MicroBatch, request: ScoreRequest, group: dist.ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """[B, W] the columns of the request, the vocabulary columns counted and the temperatures used.

    With them the [B, K] ids of the largest logits, best first.
    """
    rows, device, temperatures = len(micro.lengths_B), logits_TV.device, list(request.temperatures.values())
    top_BK = torch.zeros(rows, min(TOP, request.vocabulary), dtype=torch.long, device=device)
    values_BW = torch.zeros(rows, len(request.columns) + 1 + len(temperatures), device=device)
    position_B = spot_checked_token(micro.lengths_B).to(here.batch_N) - 1
    own = (here.column_N == position_B[here.batch_N]).nonzero().squeeze(1)
    for place in own.tolist():  # one row at a time: whole rows in double are large
        row_V = logits_TV[here.logits_row_N[place]]
        if group is not None:
            parts = [torch.empty_like(row_V) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, row_V.contiguous(), group=group)
            row_V = torch.cat(parts)
        kept_V = row_V[: request.vocabulary]
        values = [kept_V.div(value).double().log_softmax(dim=0)[here.target_N[place]] for value in temperatures]
        if request.entropy:
            values.append(torch.special.entr(kept_V.double().softmax(dim=0)).sum())
        if request.dropped:
            values.append(row_V.double().softmax(dim=0)[request.vocabulary :].sum())
        values_BW[here.batch_N[place]] = torch.tensor([*values, kept_V.isfinite().sum(), *temperatures])
        top_BK[here.batch_N[place]] = kept_V.topk(top_BK.shape[1]).indices
    return values_BW, top_BK
