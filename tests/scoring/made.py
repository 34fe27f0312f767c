"""Made logits on torch's default device, and their scores in float64."""

from __future__ import annotations

import torch
from torch import Tensor

QWEN3_VOCAB = 151_936


def seeded(seed: int) -> torch.Generator:
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def float64_scores(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy in float64, straight from the definition."""
    log_p = torch.log_softmax(logits.double() / temperature, -1)
    entropy = -torch.special.xlogy(log_p.exp(), log_p.exp()).sum(-1)
    return log_p.gather(1, target.unsqueeze(1)).squeeze(1), entropy


def float64_gradient(logits: Tensor, target: Tensor, temperature: float, weight: Tensor) -> Tensor:
    """Of the weighted sum of log-probabilities, over the logits."""
    leaf = logits.detach().double().requires_grad_()
    logp, _ = float64_scores(leaf, target, temperature)
    (gradient,) = torch.autograd.grad(logp, leaf, weight.double())
    return gradient


def behind(logits: Tensor, columns: int) -> Tensor:
    """The same rows with NaN between them."""
    base = torch.full((logits.shape[0], logits.shape[1] + columns), torch.nan, dtype=logits.dtype)
    base[:, : logits.shape[1]] = logits
    return base[:, : logits.shape[1]]


def peaked_logits(tokens: int, vocab: int, log_z: float, seed: int) -> tuple[Tensor, Tensor]:
    """Logits with a few likely tokens over a noisy floor, moved to the given log-partition, and targets."""
    generator = seeded(seed)
    logits = torch.randn(tokens, vocab, generator=generator) * 2.0
    likely = torch.randint(0, vocab, (tokens, min(8, vocab)), generator=generator)
    bump = torch.rand(likely.shape, generator=generator) * 6.0 + 8.0
    logits.scatter_(1, likely, bump)
    logits += (log_z - torch.logsumexp(logits.double(), 1, keepdim=True)).float()
    pick = torch.randint(0, vocab, (tokens,), generator=generator)
    target = torch.where(torch.arange(tokens) % 2 == 0, likely[:, 0], pick)
    return logits, target
