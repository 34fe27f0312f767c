"""Forward passes over given responses: all scores from one, and the log-probability that training differentiates.

Shape legend: B = responses, T = response tokens, N = response tokens of a micro-batch, V = vocabulary, F = features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nemo_uecr.generation.decode import to_device
from nemo_uecr.generation.models import check_sampled
from nemo_uecr.local import CHUNK_BYTES
from nemo_uecr.local.memory import to_host
from nemo_uecr.local.probes import Probe, Write
from nemo_uecr.local.sequences import MicroBatch, Sequences
from nemo_uecr.scoring.dense import token_logp, token_scores
from nemo_uecr.scoring.statistics import deferred_checks
from nemo_uecr.steps.routing import PolicyScores, TeacherScores

if TYPE_CHECKING:
    from nemo_uecr.local.token_model import TokenModel


def score_policy(
    model: TokenModel,
    sequences: Sequences,
    micro_rows: Sequence[Tensor],
    *,
    rollout_temperature: float,
    entropy: bool,
    probes: Sequence[Probe] = (),
) -> PolicyScores:
    """Score every response token at both temperatures; NaN where none was sampled, or where logits are not finite."""
    temperatures = (rollout_temperature, 1.0)
    (rollout_logp_BT, logp_BT), entropy_BT, _ = _score(
        model, sequences, micro_rows, temperatures, entropy=entropy, probes=probes
    )
    return PolicyScores(rollout_logp_BT, logp_BT, entropy_BT)


def score_teacher(
    model: TokenModel,
    sequences: Sequences,
    micro_rows: Sequence[Tensor],
    *,
    entropy: bool,
    probes: Sequence[Probe] = (),
) -> TeacherScores:
    """Score every response token of these rows at temperature 1; NaN elsewhere, and where logits are not finite."""
    if model.scored_vocab_size is not None:
        asked_B = torch.zeros(len(sequences.responses), dtype=torch.bool).index_fill(0, torch.cat(list(micro_rows)), 1)
        check_sampled(sequences.token_ids(), sequences.mask_BT & asked_B.unsqueeze(1), model.tokenizer)
    (logp_BT,), entropy_BT, dropped_BT = _score(model, sequences, micro_rows, (1.0,), entropy=entropy, probes=probes)
    return TeacherScores(logp_BT, entropy_BT, dropped_BT)


@torch.no_grad()
def _score(
    model: TokenModel,
    sequences: Sequences,
    micro_rows: Sequence[Tensor],
    temperatures: tuple[float, ...],
    *,
    entropy: bool,
    probes: Sequence[Probe],
) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
    """Log-probabilities at each temperature, entropy and dropped mass, from one forward per micro-batch."""
    dropped = model.scored_vocab_size not in (None, model.vocabulary)
    logp = [sequences.no_scores() for _ in temperatures]
    entropy_BT, dropped_BT = (sequences.no_scores() if wanted else None for wanted in (entropy, dropped))
    for rows in micro_rows:
        micro = sequences.micro_batch(rows)
        row_N, column_N = micro.mask_bT.nonzero(as_tuple=True)
        writes: list[Write] = []
        with deferred_checks():
            for tokens, logits_NV, target_N in token_logits(model, micro):
                place = (rows[row_N[tokens]], column_N[tokens])
                scores = token_scores(
                    logits_NV,
                    target_N,
                    temperatures=temperatures,
                    entropy=entropy,
                    dropped=dropped,
                    valid_vocab=model.scored_vocab_size,
                    keep_nan=True,
                )
                found = (*scores.logp, scores.entropy, scores.dropped)
                for table_BT, values_N in zip((*logp, entropy_BT, dropped_BT), found, strict=True):
                    if table_BT is not None and values_N is not None:
                        writes.append(Write(table_BT, place, values_N))
                writes += [write for probe in probes for write in probe(logits_NV, target_N, place)]
            values = to_host([write.values for write in writes])  # the one wait for a GPU
        for write, value in zip(writes, values, strict=True):
            write.table[write.place] = value
    return logp, entropy_BT, dropped_BT


def token_logits(model: TokenModel, micro: MicroBatch) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Logits [N, V] of a bounded number of response tokens at a time, with their place and the sampled ids [N]."""
    features_NF, weights = _features(model, micro), model.head_weights()
    target_N = to_device(micro.target_N, model.device)
    for tokens in _chunks(model, target_N.numel()):
        yield tokens, model.head(features_NF[tokens], weights), target_N[tokens]


def training_logp(model: TokenModel, micro: MicroBatch, *, temperature: float) -> Tensor:
    """[b, T] log pi_theta at T_r with gradient, 0 where no token was sampled.

    The same forward, chunks and arithmetic as `score_policy`: before any update the two agree bit for bit on a CPU.
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
            gradient_NF[tokens], *gradients = torch.autograd.grad(logp_N, [chunk_NF, *trained], grads[0][tokens])
            sums = [a.add_(b) for a, b in zip(sums, gradients, strict=True)] if sums else [b.float() for b in gradients]
            del gradients  # each is of the output layer's size
        of_weights = iter(sums)
        return gradient_NF, None, None, None, *(next(of_weights) if own else None for own in wanted)


def _chunk_logp(
    model: TokenModel, features_NF: Tensor, weights: Mapping[str, Tensor], target_N: Tensor, temperature: float
) -> Tensor:
    return token_logp(model.head(features_NF, weights), target_N, temperature=temperature)


def _features(model: TokenModel, micro: MicroBatch) -> Tensor:
    ids_bS, position_N = (to_device(each, model.device) for each in (micro.ids_bS, micro.position_N))
    return model.features(ids_bS).flatten(0, 1)[position_N]


def _chunks(model: TokenModel, tokens: int) -> list[slice]:
    size = max(1, CHUNK_BYTES[model.device.type] // (4 * model.vocabulary))
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]
