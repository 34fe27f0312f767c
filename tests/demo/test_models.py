"""Supervised training of the demo's and the studies' models."""

from __future__ import annotations

import math
import random

import pytest
import torch

from nemo_uecr.demo.supervised import (
    build_model,
    demonstrations,
    muon_step,
    response_loss,
    train_supervised,
)
from nemo_uecr.demo.task import build_tokenizer
from tests.demo.small import tiny_model

MODEL = tiny_model(steps=30, tokens_per_batch=300)
TOKENIZER = build_tokenizer()


def test_the_loss_falls_and_a_seed_repeats_it() -> None:
    def losses(seed: int, steps: int) -> list[float]:
        course = MODEL.course.model_copy(update={"steps": steps})
        batches = demonstrations(TOKENIZER, course, random.Random(seed), frozenset())
        return list(train_supervised(build_model(MODEL, TOKENIZER, seed), batches, course))

    whole = losses(1, 30)
    # An untrained model is near log 292 = 5.68 nats a token.
    assert abs(whole[0] - math.log(len(TOKENIZER))) < 0.2
    assert sum(whole[-5:]) / 5 < 3.0
    assert losses(1, 30) == whole
    assert losses(2, 1) != whole[:1]


def test_only_response_tokens_are_in_the_loss() -> None:
    batch = next(demonstrations(TOKENIZER, MODEL.course, random.Random(0), frozenset()))
    for ids, response in zip(batch.ids_BT, batch.response_BT, strict=True):
        text = TOKENIZER.decode(ids[response])
        assert text.endswith("}<|im_end|>")
        assert "Start" not in text
        before = TOKENIZER.decode(ids[: int(response.nonzero()[0])])
        assert before.endswith("<think>\n\n</think>\n\n")

    model = build_model(MODEL, TOKENIZER, 0)
    with torch.no_grad():
        logp = torch.log_softmax(model(batch.ids_BT[:, :-1]).logits.double(), -1)
        token_logp = logp.gather(-1, batch.ids_BT[:, 1:, None]).squeeze(-1)
        expected = -token_logp[batch.response_BT[:, 1:]].mean().item()
        assert response_loss(model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_muon_steps_as_torch_does_in_bfloat16() -> None:
    """Its orthogonalisation is torch's, in another precision."""
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    ours, theirs = torch.nn.Parameter(weight.clone()), torch.nn.Parameter(weight.clone())
    momenta = [torch.zeros_like(ours)]
    optimizer = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.01, momentum=0.95)
    for seed in range(3):
        ours.grad = theirs.grad = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
        muon_step([ours], momenta, 0.1)
        optimizer.step()
    assert (ours - weight).norm() > 0.3
    assert torch.allclose(ours, theirs, atol=0.02)
