"""Forward passes: several temperatures and the entropy from one, and the log-probability that training differentiates.

Shape legend: B = responses, T = response tokens, N = response tokens of a micro-batch, F = features, K = temperatures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nemo_uecr.core.agreement import Places
from nemo_uecr.data.models import check_sampled
from nemo_uecr.local.sequences import MicroBatch, Prompt, Sequences
from nemo_uecr.scoring.dense import score_logits, token_logp
from nemo_uecr.scoring.records import NonFiniteScoreError, TokenScores

if TYPE_CHECKING:
    from nemo_uecr.local.models import TokenModel

#: Logits of one output-layer chunk, float32 bytes. Bounds memory whatever the response length.
CHUNK_BYTES = 134_217_728


@dataclass(frozen=True)
class Scores:
    """[B, T] scores, NaN where no token was sampled so that a careless reader is caught; nats, float32, on the CPU.

    ``top_NK`` are the K most likely ids at the N compared tokens of `Places`, -1 where the model scored none.
    """

    logp: tuple[Tensor, ...]
    entropy_BT: Tensor | None
    rank_BT: Tensor | None = None
    dropped_BT: Tensor | None = None
    top_NK: Tensor | None = None


class Teacher(Protocol):
    """A source of scores; unless a subclass says otherwise, on another machine and for the student's own prompts."""

    @property
    def members(self) -> Mapping[str, TokenModel]:
        """What of `Placement` it computes with, by name."""
        return {}

    def view(self, prompt: Prompt) -> Prompt:
        """What it reads in place of a prompt of the student."""
        return prompt

    def check(self, views: Sequence[Prompt], response: int) -> None:
        """Refuse, at start, views of training prompts that it cannot read with so many response tokens behind them."""

    def score(self, read: Sequences, micro_rows: Sequence[Tensor], *, entropy: bool, places: Places | None) -> Scores:
        """Log-probability at temperature 1 of every response token of these rows, and the entropy where asked for.

        What has `members` also gives its most likely ids at ``places``.
        """

    def terms(self, step: int) -> dict[str, str]:
        """What stands behind its scores of a step, for the record."""


@torch.no_grad()
def score(
    model: TokenModel,
    sequences: Sequences,
    micro_rows: Sequence[Tensor],
    *,
    temperatures: tuple[float, ...],
    entropy: bool,
    rank: bool = False,
    places: Places | None = None,
) -> Scores:
    """Log-probability of every response token at each temperature, and the entropy at temperature 1, in one forward.

    With ``rank`` also each token's rank among the logits, 1 for the largest; with ``places`` the most likely ids there;
    for a teacher that is cut to its student's output columns, the probability of those left out. Where logits are not
    finite, NaN stays.
    """
    dropped = model.shared is not None and model.shared < model.vocabulary
    if model.shared is not None:
        asked_B = torch.zeros(len(sequences.responses), dtype=torch.bool).index_fill(0, torch.cat(list(micro_rows)), 1)
        check_sampled(sequences.token_ids(), sequences.mask_BT & asked_B.unsqueeze(1), model.tokenizer)
    shape = (len(sequences.responses), sequences.width)
    logp = tuple(torch.full(shape, torch.nan) for _ in temperatures)
    asked = {"entropy": entropy, "dropped": dropped}
    others = {name: torch.full(shape, torch.nan) for name, wanted in asked.items() if wanted}
    rank_BT = torch.zeros(shape, dtype=torch.int32) if rank else None
    top_NK = None if places is None else places.no_ids()
    scorer = partial(
        score_logits,
        temperatures=temperatures, entropy=entropy, dropped=dropped, valid_vocab=model.shared,
    )  # fmt: skip
    for rows in micro_rows:
        micro = sequences.micro_batch(rows)
        row_N, column_N = micro.mask_bT.nonzero(as_tuple=True)
        for start, logits_NV, found in _finite_scores(model, micro, scorer):
            tokens = slice(start, start + found.logp.shape[1])
            place = (rows[row_N[tokens]], column_N[tokens])
            for target_BT, values_N in zip(logp, found.logp, strict=True):
                target_BT[place] = values_N.cpu()
            for name, target_BT in others.items():
                target_BT[place] = getattr(found, name).cpu()
            if rank_BT is not None:  # of equal logits every one has the better rank
                own_N1 = logits_NV.gather(1, micro.target_N[tokens].to(model.device).unsqueeze(1))
                above_N = (logits_NV[:, : model.shared] > own_N1).sum(dim=1, dtype=torch.int32)
                rank_BT[place] = 1 + above_N.cpu()
            if places is not None and top_NK is not None:
                number_n = places.number_BT[place]
                own_n = (number_n >= 0).nonzero().squeeze(1)
                top_NK[number_n[own_n]] = places.top_ids(logits_NV[own_n.to(logits_NV.device)]).cpu()
    return Scores(logp, others.get("entropy"), rank_BT, others.get("dropped"), top_NK)


def _finite_scores(
    model: TokenModel, micro: MicroBatch, scorer: Callable[[Tensor, Tensor], TokenScores]
) -> Iterator[tuple[int, Tensor, TokenScores]]:
    """Logits and scores with the place of their first token. Tokens without a score are left out: the caller knows."""
    for tokens, logits_NV, target_N in token_logits(model, micro):
        try:
            yield tokens.start, logits_NV, scorer(logits_NV, target_N)
        except NonFiniteScoreError:  # one token at a time, to tell which
            for n in range(target_N.numel()):
                with contextlib.suppress(NonFiniteScoreError):
                    one = slice(n, n + 1)
                    yield tokens.start + n, logits_NV[one], scorer(logits_NV[one], target_N[one])


def token_logits(model: TokenModel, micro: MicroBatch) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Logits [N, V] of a bounded number of response tokens at a time, with their place and the sampled ids [N]."""
    features_NF = _features(model, micro)
    for tokens in _chunks(features_NF.shape[0], model.vocabulary):
        with model.forward_context():
            logits_NV = model.head(features_NF[tokens])
        yield tokens, logits_NV, micro.target_N[tokens].to(model.device)


def training_logp(model: TokenModel, micro: MicroBatch, *, temperature: float) -> Tensor:
    """[b, T] log pi_theta at T_r with gradient, 0 where no token was sampled.

    The same forward, chunks and arithmetic as `score`: before any update the two agree bit for bit on a CPU.
    """
    features_NF = _features(model, micro)
    target_N = micro.target_N.to(model.device)
    chunks = list(_chunks(features_NF.shape[0], model.vocabulary))
    parts = []
    for tokens in chunks:
        if len(chunks) == 1:
            parts.append(_chunk_logp(model, features_NF[tokens], target_N[tokens], temperature))
        else:  # recompute each chunk's logits in the backward pass instead of keeping all of them
            parts.append(
                checkpoint(_chunk_logp, model, features_NF[tokens], target_N[tokens], temperature, use_reentrant=False)
            )
    logp_bT = torch.zeros(micro.mask_bT.shape, device=model.device)
    return logp_bT.masked_scatter(micro.mask_bT.to(model.device), torch.cat(parts))


def _chunk_logp(model: TokenModel, features_NF: Tensor, target_N: Tensor, temperature: float) -> Tensor:
    with model.forward_context():
        logits_NV = model.head(features_NF)
    return token_logp(logits_NV, target_N, temperature=temperature)


def _features(model: TokenModel, micro: MicroBatch) -> Tensor:
    with model.forward_context():
        features_bSF = model.features(micro.ids_bS.to(model.device))
    return features_bSF.flatten(0, 1)[micro.position_N.to(model.device)]


def _chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, CHUNK_BYTES // (4 * vocabulary))
    for start in range(0, tokens, size):
        yield slice(start, min(start + size, tokens))
