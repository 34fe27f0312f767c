from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from nemo_uecr.demo.muon import Muon, orthogonalise  # noqa: E402
from nemo_uecr.demo.recipe import Course, ModelShape  # noqa: E402
from nemo_uecr.demo.supervised import (  # noqa: E402
    build_model,
    demonstrations,
    response_loss,
    train_supervised,
)
from nemo_uecr.demo.tokenizer import build_tokenizer  # noqa: E402

SHAPE = ModelShape(hidden_size=16, intermediate_size=32, layers=1, heads=2, key_value_heads=1, head_dim=8)
COURSE = Course(30, adam_learning_rate=1e-2, muon_learning_rate=2e-2, skip_rate=0.5, tokens_per_batch=300)
TOKENIZER = build_tokenizer()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained_losses(seed: int) -> list[float]:
    model = build_model(SHAPE, TOKENIZER, seed)
    losses: list[float] = []
    batches = demonstrations(TOKENIZER, COURSE, random.Random(seed), frozenset())
    train_supervised(model, batches, COURSE, lambda step, loss: losses.append(loss))
    return losses


def test_the_loss_falls_and_a_seed_repeats_it() -> None:
    losses = trained_losses(1)
    # An untrained model is near log 292 = 5.68 nats a token.
    assert abs(losses[0] - math.log(len(TOKENIZER))) < 0.2
    assert sum(losses[-5:]) / 5 < 3.0
    assert trained_losses(1) == losses
    assert trained_losses(2) != losses


def test_only_response_tokens_are_in_the_loss() -> None:
    batch = next(demonstrations(TOKENIZER, COURSE, random.Random(0), frozenset()))
    for ids, response in zip(batch.ids_BT, batch.response_BT, strict=True):
        text = TOKENIZER.decode(ids[response])
        assert text.endswith("}<|im_end|>")
        assert "Start" not in text
        before = TOKENIZER.decode(ids[: int(response.nonzero()[0])])
        assert before.endswith("<think>\n\n</think>\n\n")

    model = build_model(SHAPE, TOKENIZER, 0)
    with torch.no_grad():
        logp = torch.log_softmax(model(batch.ids_BT[:, :-1]).logits.double(), -1)
        token_logp = logp.gather(-1, batch.ids_BT[:, 1:, None]).squeeze(-1)
        expected = -token_logp[batch.response_BT[:, 1:]].mean().item()
        assert response_loss(model, batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_orthogonalise_keeps_the_singular_vectors(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    rotated = u.T @ orthogonalise(matrix) @ vh.T  # diagonal, with the new singular values
    values = rotated.diagonal()
    assert torch.allclose(rotated, torch.diag(values), atol=1e-12)
    assert values.min() > 0.6
    assert values.max() < 1.25


def test_muon_step_by_hand() -> None:
    # W = 2, G = 3: M = .05 * 3 = .15; the update's sign is +, its size the quintic's fixed behaviour at 1x1.
    weight = torch.nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))
    weight.grad = torch.tensor([[3.0]], dtype=torch.float64)
    x = 1.0
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
    Muon([weight]).step(0.1)
    assert weight.item() == pytest.approx(2.0 * (1 - 0.1 * 0.01) - 0.1 * x, abs=1e-12)
