"""Tests of the Triton kernels that `test_triton.py` runs in Triton's interpreter: there they serve CPU tensors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.dense import token_logp, token_scores
from nemo_uecr.scoring.records import MAX_ROW, TARGET_ROW, NonFiniteScoreError, StatisticsLayout
from nemo_uecr.scoring.reduce import reduce_logits, triton_serves
from nemo_uecr.scoring.statistics import _finish
from nemo_uecr.scoring.triton_kernels import (
    BACKWARD,
    FINISH_TOKENS,
    FORWARD,
    finish_with_triton,
    write_gradient_with_triton,
)
from tests.scoring.made import QWEN3_VOCAB, float64_scores, peaked_logits

TILE = 4 * FORWARD["LANES"]
VOCABULARIES = (1, 61, 1024, TILE - 1, TILE, TILE + 1, 2 * TILE + 5, 37_987, 75_968, QWEN3_VOCAB)
ASKED = (((1.0,), True), ((1.0, 0.7), True), ((0.7,), False), ((0.6, 1.0, 1.3, 0.6), True))
BOTH = StatisticsLayout((1.0, 0.7), True)


def behind(logits: Tensor, columns: int) -> Tensor:
    """The same rows with NaN between them."""
    base = torch.full((logits.shape[0], logits.shape[1] + columns), torch.nan, dtype=logits.dtype)
    base[:, : logits.shape[1]] = logits
    return base[:, : logits.shape[1]]


def test_the_kernels_serve_here() -> None:
    assert triton_serves(torch.zeros(1))


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_scores_against_float64(vocab: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        logits, target = peaked_logits(3, vocab, 15.0, seed=vocab)
        logits = behind(logits.to(dtype), 5)
        for temperatures, entropy in ASKED if vocab < TILE * 3 and dtype == torch.bfloat16 else ASKED[1:2]:
            scores = token_scores(logits, target, temperatures=temperatures, entropy=entropy)
            for temperature in temperatures:
                logp, _ = float64_scores(logits, target, temperature)
                assert (scores.at(temperature) - logp).abs().max() <= 2e-6, (dtype, temperatures)
                if dtype == torch.bfloat16:
                    assert torch.equal(token_logp(logits, target, temperature=temperature), scores.at(temperature))
            if scores.entropy is not None:
                _, exact = float64_scores(logits, target, 1.0)
                assert (scores.entropy - exact).abs().max() <= 2e-6, (dtype, temperatures)
                assert (scores.entropy >= 0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperatures", [(1.0,), (0.7,)])
def test_a_bad_logit_is_refused_wherever_it_stands(value: float, temperatures: tuple[float, ...]) -> None:
    logits, target = peaked_logits(3, TILE + 9, 9.0, seed=12)
    for column in (0, 17, TILE - 1, TILE, TILE + 8):
        spoilt = logits.clone()
        spoilt[1, column] = value
        with pytest.raises(NonFiniteScoreError, match="token 1"):
            token_scores(spoilt, target, temperatures=temperatures, entropy=temperatures == (1.0,))


def test_masked_rows_targets_and_targets_outside_are_refused() -> None:
    logits, target = peaked_logits(3, TILE + 9, 9.0, seed=13)
    logits[2] = -torch.inf
    with pytest.raises(NonFiniteScoreError, match="token 2"):
        token_scores(logits, target, temperatures=(1.0, 0.7), entropy=True)
    logits[2] = 0.0
    logits[2, int(target[2])] = -torch.inf
    with pytest.raises(NonFiniteScoreError, match="token 2"):
        token_scores(logits, target, temperatures=(0.7,), entropy=False)
    for outside in (-1, TILE + 9):
        with pytest.raises(ScoreError, match=f"token 1 of those scored is {outside}"):
            token_scores(logits, torch.tensor([0, outside, 0]), temperatures=(1.0,), entropy=False)


@pytest.mark.parametrize("masked", [-math.inf, torch.finfo(torch.float32).min, -3e4])
@pytest.mark.parametrize("temperature", [1.0, 500.0, 1e30])
def test_masked_columns_weigh_what_they_should(masked: float, temperature: float) -> None:
    """Before and after the real ones; a drop of -3e38 still counts at a temperature of 1e30."""
    logits = torch.full((2, 3 * TILE + 4), masked)
    logits[0, [TILE + 1, TILE + 2, 3 * TILE]] = torch.tensor([1.0, 0.0, 2.0])
    logits[1, :3] = torch.tensor([1.0, 0.0, 2.0])
    target = torch.tensor([3 * TILE, 0])
    scores = token_scores(logits, target, temperatures=(temperature,), entropy=True)
    logp, _ = float64_scores(logits, target, temperature)
    _, entropy = float64_scores(logits, target, 1.0)
    assert (scores.at(temperature) - logp).abs().max() <= 2e-6
    assert (scores.entropy - entropy).abs().max() <= 2e-6


def test_a_row_of_the_lowest_number_is_uniform() -> None:
    logits = torch.full((1, TILE + 3), torch.finfo(torch.float32).min)
    scores = token_scores(logits, torch.tensor([7]), temperatures=(1.0, 0.7), entropy=True)
    assert (scores.logp + math.log(TILE + 3)).abs().max() <= 1e-6


def test_a_masked_shard_adds_exactly_nothing() -> None:
    logits, target = peaked_logits(4, TILE + 100, 9.0, seed=3)
    own = reduce_logits(logits, target, BOTH, 0)
    masked = reduce_logits(torch.full((4, TILE + 5), -torch.inf), target, BOTH, TILE + 100)
    assert torch.equal(masked, torch.tensor([-torch.inf, -torch.inf, 0.0, 0.0, 0.0]).unsqueeze(1).expand(-1, 4))
    logp, both, entropy, other = torch.empty(2, 4), torch.empty(2, 4), torch.empty(4), torch.empty(4)
    finish_with_triton(own.unsqueeze(0), BOTH, logp, entropy)
    _, sound = finish_with_triton(torch.stack([masked, own, masked]), BOTH, both, other)
    assert sound.all()
    assert torch.equal(logp, both)
    assert torch.equal(entropy, other)


def test_shards_give_the_scores_of_the_whole() -> None:
    logits, target = peaked_logits(6, 61, 12.0, seed=4)
    parts = [(logits[:, a:b], a) for a, b in ((0, 20), (20, 21), (21, 61))]
    stats = torch.stack([reduce_logits(part, target, BOTH, first) for part, first in parts])
    logp, entropy = torch.empty(2, 6), torch.empty(6)
    finish_with_triton(stats, BOTH, logp, entropy)
    for row, temperature in enumerate((1.0, 0.7)):
        assert (logp[row] - float64_scores(logits, target, temperature)[0]).abs().max() <= 2e-6
    assert (entropy - float64_scores(logits, target, 1.0)[1]).abs().max() <= 2e-6


@pytest.mark.parametrize("asked", ASKED)
def test_scores_from_statistics_are_those_of_plain_torch(asked: tuple[tuple[float, ...], bool]) -> None:
    """More tokens than one program takes; some with numbers that are not finite, each in another statistic."""
    layout, tokens = StatisticsLayout(*asked), FINISH_TOKENS + 9
    stats = torch.rand(3, layout.width, tokens, generator=torch.Generator().manual_seed(7)) + 0.5
    stats[:, TARGET_ROW] -= 2.0
    for row in range(layout.width):
        stats[1, row, 2 * row], stats[2, row, FINISH_TOKENS + row] = torch.inf, torch.nan
    stats[:, MAX_ROW, 100] = -torch.inf
    found = [torch.empty(len(asked[0]), tokens) for _ in range(2)]
    entropy = [torch.empty(tokens) if asked[1] else None for _ in range(2)]
    merged, sound = finish_with_triton(stats, layout, found[0], entropy[0])
    expected, same = _finish(stats, layout, found[1], entropy[1])
    assert torch.equal(sound, same)
    assert 0 < int((~sound).sum()) <= 2 * layout.width + 1
    torch.testing.assert_close(merged[:, sound], expected[:, sound], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0][:, sound], found[1][:, sound], rtol=1e-6, atol=1e-6)
    if asked[1]:
        torch.testing.assert_close(entropy[0][sound], entropy[1][sound], rtol=1e-6, atol=1e-6)


def test_the_mass_of_padding_columns() -> None:
    logits, target = peaked_logits(6, 1536, 9.0, seed=2)
    target %= 700
    scores = token_scores(logits, target, temperatures=(0.7,), entropy=False, dropped=True, valid_vocab=700)
    assert (scores.dropped - logits.double().softmax(1)[:, 700:].sum(1)).abs().max() <= 1e-6


def float64_gradient(logits: Tensor, target: Tensor, weight: Tensor, temperature: float) -> Tensor:
    leaf = logits.detach().double().requires_grad_()
    logp = torch.log_softmax(leaf / temperature, 1).gather(1, target.unsqueeze(1)).squeeze(1)
    (gradient,) = torch.autograd.grad(logp, leaf, weight.double())
    return gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradient_against_float64(dtype: torch.dtype, temperature: float) -> None:
    vocab, padding = BACKWARD["BLOCK"] + 70, 24
    logits, target = peaked_logits(6, vocab, 9.0, seed=9)
    target[0], logits[1, :50] = vocab - 1, -torch.inf
    target[1] = 60
    padded = torch.cat([logits, torch.full((6, padding), torch.nan)], 1).to(dtype)
    leaf = behind(padded, 3)[:, None].expand(-1, 2, -1).requires_grad_()  # rows apart, and a slice of a batch
    weight = torch.randn(6, generator=torch.Generator().manual_seed(1))
    logp = token_logp(leaf[:, 1], target, temperature=temperature, valid_vocab=vocab)
    (gradient,) = torch.autograd.grad(logp, leaf, weight)
    expected = float64_gradient(padded[:, :vocab], target, weight, temperature)
    bound = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype] * weight.abs().max() * 2
    assert gradient.dtype == dtype
    assert (gradient[:, 1, :vocab].double() - expected).abs().max() <= bound
    assert not gradient[:, 1, vocab:].any()
    assert not gradient[:, 0].any()
    (summed,) = torch.autograd.grad(
        token_logp(leaf[:, 1], target, temperature=temperature, valid_vocab=vocab).sum(), leaf
    )
    assert torch.isfinite(summed).all()


def test_gradient_of_a_shard() -> None:
    """The target of the first row stands on another shard; the columns begin at 40."""
    logits, target = peaked_logits(5, 100, 9.0, seed=6)
    target[0], target[1] = 12, 99
    weight = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    layout = StatisticsLayout((0.7,), False)
    merged, _ = finish_with_triton(
        reduce_logits(logits, target, layout, 0).unsqueeze(0), layout, torch.empty(1, 5), None
    )
    gradient = torch.full((5, 60), torch.nan)
    write_gradient_with_triton(logits[:, 40:], target - 40, merged, layout, weight, gradient)
    assert (gradient - float64_gradient(logits, target, weight, 0.7)[:, 40:]).abs().max() <= 1e-6
