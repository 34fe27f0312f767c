"""Forward passes: several temperatures and the entropy from one, and the log-probability that training differentiates.

Shape legend: B = responses, T = response tokens, N = response tokens of a micro-batch, F = features, K = temperatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from nemo_uecr.local.models import TokenModel
from nemo_uecr.local.sequences import MicroBatch, Sequences
from nemo_uecr.scoring.dense import score_logits, token_logp
from nemo_uecr.scoring.records import NonFiniteScoreError

#: Logits of one output-layer chunk, float32 bytes. Bounds memory whatever the response length.
CHUNK_BYTES = 134_217_728
#: A little less than the largest float32, for the logarithm that is still taken off.
LARGEST_GAP = 3.4e38


@dataclass(frozen=True)
class Scores:
    """[B, T] scores, NaN where no token was sampled so that a careless reader is caught; nats, float32, on the CPU."""

    logp: tuple[Tensor, ...]
    entropy_BT: Tensor | None
    top1_BT: Tensor | None = None


@torch.no_grad()
def score(
    model: TokenModel,
    sequences: Sequences,
    slices: Sequence[slice],
    *,
    temperatures: tuple[float, ...],
    entropy: bool,
    top1: bool = False,
) -> Scores:
    """Log-probability of every response token at each temperature, and the entropy at temperature 1, in one forward.

    Args:
        model: the policy, the teacher or the reference.
        sequences: prompts and responses.
        slices: rows of each forward pass.
        temperatures: K temperatures.
        entropy: whether to return the full-vocabulary entropy.
        top1: whether to return if the token has the largest logit.

    Returns:
        The scores; a token whose logits are not finite stays NaN.
    """
    shape = (len(sequences.responses), sequences.width)
    logp = tuple(torch.full(shape, torch.nan) for _ in temperatures)
    entropy_BT = torch.full(shape, torch.nan) if entropy else None
    top1_BT = torch.zeros(shape, dtype=torch.bool) if top1 else None
    for rows in slices:
        micro = sequences.micro_batch(rows)
        for tokens, logits_NV, target_N in token_logits(model, micro):
            place = _place(micro, tokens)
            try:
                found = score_logits(logits_NV, target_N, temperatures=temperatures, entropy=entropy, top1=top1)
            except NonFiniteScoreError:  # these tokens stay NaN; whoever knows the samples names the first of them
                good_N = _usable(logits_NV, target_N, temperatures)
                if not bool(good_N.any()):
                    continue
                found = score_logits(
                    logits_NV[good_N], target_N[good_N], temperatures=temperatures, entropy=entropy, top1=top1
                )
                place = (place[0][good_N.cpu()], place[1][good_N.cpu()])
            for target_BT, values_N in zip(logp, found.logp_KN, strict=True):
                target_BT[rows][place] = values_N.cpu()
            if entropy_BT is not None and found.entropy_N is not None:
                entropy_BT[rows][place] = found.entropy_N.cpu()
            if top1_BT is not None and found.top1_N is not None:
                top1_BT[rows][place] = found.top1_N.cpu()
    return Scores(logp, entropy_BT, top1_BT)


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


def _usable(logits_NV: Tensor, target_N: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    """[N] rows that have scores: no logit NaN or +inf (-inf is a masked column), the target's own finite.

    Nor may a log-probability be beyond float32, which takes logits near its largest number.
    """
    target_N1 = target_N.unsqueeze(1)
    logit_N = logits_NV.gather(1, target_N1)[:, 0].double()
    below_N = (logits_NV.amax(dim=1).double() - logit_N) / min(temperatures, default=torch.inf)
    finite_N = logit_N.isfinite() & (below_N < LARGEST_GAP)
    return finite_N & ~(logits_NV.isnan() | (logits_NV == torch.inf)).any(dim=1)


def _chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, CHUNK_BYTES // (4 * vocabulary))
    for start in range(0, tokens, size):
        yield slice(start, min(start + size, tokens))


def _place(micro: MicroBatch, tokens: slice) -> tuple[Tensor, Tensor]:
    rows_N, columns_N = micro.mask_bT.nonzero(as_tuple=True)
    return rows_N[tokens], columns_N[tokens]
