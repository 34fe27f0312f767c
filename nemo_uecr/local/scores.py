"""Forward passes: several temperatures and the entropy from one, and the log-probability that training differentiates.

Shape legend: B = responses, T = response tokens, N = response tokens of a micro-batch, F = features, K = temperatures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from nemo_uecr.core.agreement import Places
from nemo_uecr.generation.models import check_sampled
from nemo_uecr.local import CHUNK_BYTES
from nemo_uecr.local.memory import to_device, to_host
from nemo_uecr.local.sequences import MicroBatch, Prompt, Sequences
from nemo_uecr.scoring.dense import token_logp, token_scores
from nemo_uecr.scoring.records import NonFiniteScoreError, TokenScores
from nemo_uecr.scoring.statistics import checked_together

if TYPE_CHECKING:
    from nemo_uecr.local.token_model import TokenModel


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
    own_ends_BT: Tensor | None = None,
) -> Scores:
    """Log-probability of every response token at each temperature, and the entropy at temperature 1, in one forward.

    With ``rank`` also each token's rank among the logits, 1 for the largest; with ``places`` the most likely ids there;
    for a teacher that is cut to its student's output columns, the probability of those left out. Where ``own_ends_BT``,
    the score at the first temperature, 1, is that of any of the model's own end tokens. Where logits are not finite,
    NaN stays.
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
        token_scores,
        temperatures=temperatures, entropy=entropy, dropped=dropped, valid_vocab=model.shared,
    )  # fmt: skip

    def scored(rows: Tensor, *, singly: bool) -> Iterator[tuple[Tensor, Any, Tensor]]:
        """What to fill, where, and with which values, still on the device."""
        micro = sequences.micro_batch(rows)
        row_N, column_N = micro.mask_bT.nonzero(as_tuple=True)
        for start, logits_NV, target_N, found in _scores(model, micro, scorer, singly=singly):
            tokens = slice(start, start + target_N.numel())
            place = (rows[row_N[tokens]], column_N[tokens])
            yield from ((target_BT, place, values_N) for target_BT, values_N in zip(logp, found.logp, strict=True))
            yield from ((target_BT, place, getattr(found, name)) for name, target_BT in others.items())
            if own_ends_BT is not None and len(end_n := own_ends_BT[place].nonzero().squeeze(1)):
                at_n = to_device(end_n, logits_NV.device)
                logits_nV, own = logits_NV[at_n].float(), sorted(model.tokens.end_ids)
                more_n = logits_nV[:, own].logsumexp(1) - logits_nV.gather(1, target_N[at_n].unsqueeze(1)).squeeze(1)
                yield logp[0], (place[0][end_n], place[1][end_n]), found.logp[0][at_n] + more_n
            if rank_BT is not None:  # of equal logits every one has the better rank
                above_NV = logits_NV[:, : model.shared] > logits_NV.gather(1, target_N.unsqueeze(1))
                yield rank_BT, place, 1 + above_NV.sum(dim=1, dtype=torch.int32)
            if places is not None and top_NK is not None:
                number_n = places.number_BT[place]
                own_n = (number_n >= 0).nonzero().squeeze(1)
                yield top_NK, number_n[own_n], places.top_ids(logits_NV[to_device(own_n, logits_NV.device)])

    for rows in micro_rows:
        try:
            with checked_together():
                found = list(scored(rows, singly=False))
                values = to_host([value for *_, value in found])  # the one wait for a GPU
        except NonFiniteScoreError:
            found = list(scored(rows, singly=True))
            values = to_host([value for *_, value in found])
        for (target, place, _), value in zip(found, values, strict=True):
            target[place] = value
    return Scores(logp, others.get("entropy"), rank_BT, others.get("dropped"), top_NK)


def _scores(
    model: TokenModel, micro: MicroBatch, scorer: Callable[[Tensor, Tensor], TokenScores], *, singly: bool
) -> Iterator[tuple[int, Tensor, Tensor, TokenScores]]:
    """Logits, ids and scores with the place of their first token.

    Token by token where asked ``singly``, without those whose logits are not finite.
    """
    for tokens, logits_NV, target_N in token_logits(model, micro):
        if not singly:
            yield tokens.start, logits_NV, target_N, scorer(logits_NV, target_N)
            continue
        for n in range(target_N.numel()):
            with contextlib.suppress(NonFiniteScoreError):
                one = slice(n, n + 1)
                yield tokens.start + n, logits_NV[one], target_N[one], scorer(logits_NV[one], target_N[one])


def token_logits(model: TokenModel, micro: MicroBatch) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Logits [N, V] of a bounded number of response tokens at a time, with their place and the sampled ids [N]."""
    features_NF, weights = _features(model, micro), model.head_weights()
    target_N = to_device(micro.target_N, model.device)
    for tokens in _chunks(model, target_N.numel()):
        with model.forward_context():
            logits_NV = model.head(features_NF[tokens], weights)
        yield tokens, logits_NV, target_N[tokens]


def training_logp(model: TokenModel, micro: MicroBatch, *, temperature: float) -> Tensor:
    """[b, T] log pi_theta at T_r with gradient, 0 where no token was sampled.

    The same forward, chunks and arithmetic as `score`: before any update the two agree bit for bit on a CPU.
    """
    features_NF = _features(model, micro)
    target_N = to_device(micro.target_N, model.device)
    if len(_chunks(model, target_N.numel())) == 1:
        logp_N = _chunk_logp(model, features_NF, model.head_weights(), target_N, temperature)
    else:
        logp_N = _ChunkedLogp.apply(features_NF, target_N, model, temperature, *model.head_parameters())  # type: ignore[no-untyped-call]
    place_N = to_device(micro.mask_bT.flatten().nonzero().squeeze(1), model.device)
    logp = logp_N.new_zeros(micro.mask_bT.numel()).index_put((place_N,), logp_N)
    return logp.view(micro.mask_bT.shape)


class _ChunkedLogp(torch.autograd.Function):
    """`_chunk_logp` of all chunks; the backward computes each one's logits again instead of keeping those of all.

    The weights' gradients are added up in float32, each chunk's to the sum of those before.
    """

    @staticmethod
    def forward(
        ctx: Any, features_NF: Tensor, target_N: Tensor, model: TokenModel, temperature: float, *parameters: Tensor
    ) -> Tensor:
        weights = model.head_weights()
        ctx.save_for_backward(features_NF, target_N, *weights.values())
        ctx.model, ctx.temperature, ctx.names = model, temperature, list(weights)
        chunks = _chunks(model, target_N.numel())
        return torch.cat([_chunk_logp(model, features_NF[c], weights, target_N[c], temperature) for c in chunks])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        features_NF, target_N, *weights = ctx.saved_tensors
        wanted = ctx.needs_input_grad[4:]
        leaves = [weight.detach().requires_grad_(own) for weight, own in zip(weights, wanted, strict=True)]
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        gradient_NF, sums = torch.empty_like(features_NF), list[Tensor]()
        for tokens in reversed(_chunks(ctx.model, target_N.numel())):
            chunk_NF = features_NF[tokens].detach().requires_grad_()
            with torch.enable_grad():
                named = dict(zip(ctx.names, leaves, strict=True))
                logp_N = _chunk_logp(ctx.model, chunk_NF, named, target_N[tokens], ctx.temperature)
            gradient_NF[tokens], *found = torch.autograd.grad(logp_N, [chunk_NF, *trained], grads[0][tokens])
            sums = [a.add_(b) for a, b in zip(sums, found, strict=True)] if sums else [b.float() for b in found]
            del found  # each is of the output layer's size
        of_weights = iter(sums)
        return gradient_NF, None, None, None, *(next(of_weights) if own else None for own in wanted)


def _chunk_logp(
    model: TokenModel, features_NF: Tensor, weights: Mapping[str, Tensor], target_N: Tensor, temperature: float
) -> Tensor:
    with model.forward_context():
        logits_NV = model.head(features_NF, weights)
    return token_logp(logits_NV, target_N, temperature=temperature)


def _features(model: TokenModel, micro: MicroBatch) -> Tensor:
    ids_bS, position_N = (to_device(each, model.device) for each in (micro.ids_bS, micro.position_N))
    with model.forward_context():
        features_bSF = model.features(ids_bS)
    return features_bSF.flatten(0, 1)[position_N]


def _chunks(model: TokenModel, tokens: int) -> list[slice]:
    size = max(1, CHUNK_BYTES[model.device.type] // (4 * model.vocabulary))
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]
