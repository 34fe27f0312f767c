"""Scores and gradients by every reduction against float64: in C, in plain torch, in Triton's interpreter, on a GPU."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.dense import token_logp, token_scores
from nemo_uecr.scoring.records import NonFiniteScoreError
from nemo_uecr.scoring.reduce import INTERPRETED
from nemo_uecr.scoring.statistics import deferred_checks
from tests.scoring.made import QWEN3_VOCAB, behind, float64_gradient, float64_scores, peaked_logits, seeded

ERROR_BOUND = 5e-6
#: Temperatures, and whether the entropy is asked for.
ASKED = (((1.0, 0.7), True), ((1.0,), True), ((0.7,), False), ((0.6, 1.0, 1.3, 0.6), True))


@pytest.mark.usefixtures("reduction")
def test_hand_values() -> None:
    # exp(z) = 1, 2, 5: p = 1/8, 2/8, 5/8. Target 1: ln(1/4) = -1.3862944.
    # H = (1/8) ln 8 + (1/4) ln 4 + (5/8) ln 1.6 = 0.2599302 + 0.3465736 + 0.2937523 = 0.9002561.
    # At T = 1/2 the weights are squared, 1, 4, 25: ln(4/30) = -2.0149030.
    logits = torch.tensor([[0.0, math.log(2.0), math.log(5.0)]])
    scores = token_scores(logits, torch.tensor([1]), temperatures=(0.5, 1.0), entropy=True)
    torch.testing.assert_close(scores.logp, torch.tensor([[-2.0149030], [-1.3862944]]), rtol=0, atol=2e-7)
    torch.testing.assert_close(scores.entropy, torch.tensor([0.9002561]), rtol=0, atol=2e-7)
    assert token_scores(logits[0], torch.tensor(1), entropy=True).entropy.equal(scores.entropy[0])


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize(
    ("vocab", "dtype", "log_z"),
    [
        (QWEN3_VOCAB, torch.float32, 25.0),
        (QWEN3_VOCAB, torch.bfloat16, 8.0),
        # One column of logit 0 beyond the last real one would add exp(-4) = 0.018 at log Z = 4.
        (QWEN3_VOCAB - 27, torch.float32, 4.0),
        (37_987, torch.bfloat16, 25.0),
        (8197, torch.bfloat16, 15.0),
        (4097, torch.float16, 8.0),
        (4096, torch.bfloat16, 8.0),
        (4095, torch.bfloat16, 8.0),
        (65, torch.float16, 8.0),
        (16, torch.bfloat16, 8.0),
        (15, torch.float32, 8.0),
        (61, torch.float32, 25.0),
        (1, torch.float32, 8.0),
    ],
)
def test_error_against_float64(vocab: int, dtype: torch.dtype, log_z: float) -> None:
    """For each layout of statistics, whatever stands between the rows."""
    logits, target = peaked_logits(3, vocab, log_z, seed=3)
    logits = behind(logits.to(dtype), 5)
    for temperatures, entropy in ASKED if vocab < 10_000 else ASKED[:1]:
        scores = token_scores(logits, target, temperatures=temperatures, entropy=entropy)
        for temperature in temperatures:
            logp, _ = float64_scores(logits, target, temperature)
            assert (scores.at(temperature) - logp).abs().max() <= ERROR_BOUND
        if scores.entropy is not None:
            assert (scores.entropy - float64_scores(logits, target, 1.0)[1]).abs().max() <= ERROR_BOUND
            assert (scores.entropy >= 0).all()


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("filler", [1e30, math.nan])
def test_padding_columns_change_no_bit(filler: float) -> None:
    logits, target = peaked_logits(9, 1000, 12.0, seed=5)
    padded = torch.cat([logits, torch.full((9, 24), filler)], 1)
    plain = token_scores(logits, target, temperatures=(1.0, 0.7), entropy=True)
    masked = token_scores(padded, target, temperatures=(1.0, 0.7), entropy=True, valid_vocab=1000)
    assert torch.equal(plain.logp, masked.logp)
    assert torch.equal(plain.entropy, masked.entropy)


@pytest.mark.usefixtures("reduction")
def test_the_mass_of_padding_columns() -> None:
    logits, target = peaked_logits(6, 1536, 9.0, seed=2)
    target %= 700
    scores = token_scores(logits, target, temperatures=(0.7,), entropy=False, dropped=True, valid_vocab=700)
    assert (scores.dropped - logits.double().softmax(1)[:, 700:].sum(1)).abs().max() <= 1e-6
    whole = token_scores(logits, target, temperatures=(0.7,), entropy=False, dropped=True)
    assert torch.equal(whole.dropped, torch.zeros(6))


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize(("tokens", "vocab"), [(20 if INTERPRETED else 300, 61), (6, 4166), (3, 33_000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradient_against_float64(tokens: int, vocab: int, dtype: torch.dtype, temperature: float) -> None:
    """In rows apart, a slice of a batch, with masked columns and padding that is NaN."""
    logits, target = peaked_logits(tokens, vocab, 9.0, seed=9)
    target[0], logits[1, :50] = vocab - 1, -torch.inf
    target[1] = 60
    padded = torch.cat([logits, torch.full((tokens, 24), torch.nan)], 1).to(dtype)
    leaf = behind(padded, 3)[:, None].expand(-1, 2, -1).requires_grad_()
    weight = torch.randn(tokens, generator=seeded(1))
    logp = token_logp(leaf[:, 1], target, temperature=temperature, valid_vocab=vocab)
    (gradient,) = torch.autograd.grad(logp, leaf, weight)
    expected = float64_gradient(padded[:, :vocab], target, temperature, weight)
    last_place = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    bound = last_place * weight.abs().max() / temperature
    assert gradient.dtype == dtype
    assert (gradient[:, 1, :vocab].double() - expected).abs().max() <= bound
    assert not gradient[:, 1, vocab:].any()
    assert not gradient[:, 0].any()


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("masked", [-math.inf, torch.finfo(torch.float32).min, -3e4])
@pytest.mark.parametrize("temperature", [1.0, 10.0, 500.0, 1e30])
def test_masked_columns_weigh_what_they_should(temperature: float, masked: float) -> None:
    """A drop of -3e38 still counts at a temperature of 1e30."""
    # Were a masked column taken to lie 50 below the largest, 150,000 of them would outweigh the four real ones
    # already at T = 10: 150,000 exp(-5) = 1011.
    last = 12_291 if INTERPRETED else 150_003
    logits = torch.full((3, last + 1), masked)
    logits[:, [0, last // 2, last - 1000, last]] = torch.tensor([1.0, 0.0, -1.0, 2.0])
    target = torch.tensor([0, last // 2, last])
    scores = token_scores(logits, target, temperatures=(temperature,), entropy=True)
    logp, _ = float64_scores(logits, target, temperature)
    _, entropy = float64_scores(logits, target, 1.0)
    assert (scores.at(temperature) - logp).abs().max() <= 2e-6
    assert (scores.entropy - entropy).abs().max() <= 2e-6


@pytest.mark.usefixtures("reduction")
def test_a_row_of_the_lowest_number_is_uniform() -> None:
    logits = torch.full((1, 4099), torch.finfo(torch.float32).min)
    scores = token_scores(logits, torch.tensor([7]), temperatures=(1.0, 0.7), entropy=True)
    assert (scores.logp + math.log(4099)).abs().max() <= 1e-6


@pytest.mark.usefixtures("reduction")
@given(
    rows=st.lists(st.lists(st.floats(-60, 60, width=32), min_size=4, max_size=4), min_size=1, max_size=5),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
)
@settings(max_examples=10 if INTERPRETED else 60, deadline=None, suppress_health_check=[])
def test_any_four_logits(rows: list[list[float]], temperature: float) -> None:
    logits = torch.tensor(rows)
    for column in range(4):
        target = torch.full((len(rows),), column)
        scores = token_scores(logits, target, temperatures=(temperature,), entropy=True)
        logp, _ = float64_scores(logits, target, temperature)
        _, entropy = float64_scores(logits, target, 1.0)
        assert (scores.at(temperature) - logp).abs().max() <= 2e-6 * max(1.0, float(logp.abs().max()))
        assert (scores.entropy - entropy).abs().max() <= 2e-6


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_logit_is_refused_wherever_it_stands(value: float) -> None:
    for column in (0, 17, 4095, 4096, 9999):
        logits, target = peaked_logits(4, 10_000, 9.0, seed=12)
        logits[2, column] = value
        for temperatures, entropy in ASKED[1:3]:
            with pytest.raises(NonFiniteScoreError, match="token 2"):
                token_scores(logits, target, temperatures=temperatures, entropy=entropy)


@pytest.mark.usefixtures("reduction")
def test_rows_and_targets_of_probability_zero_are_refused() -> None:
    tokens = 20 if INTERPRETED else 9000  # the message counts tokens over chunks
    bad, target = tokens - 7, torch.zeros(tokens).long()
    logits = torch.zeros(tokens, 4)
    logits[bad] = -math.inf
    with pytest.raises(NonFiniteScoreError, match=f"token {bad}"):
        token_scores(logits, target, temperatures=(1.0,), entropy=True)
    logits[bad, :3] = 0.0
    with pytest.raises(NonFiniteScoreError, match=f"token {bad}"):
        token_scores(logits, target + 3, temperatures=(0.7,), entropy=False)


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("target", [-1, 4])
def test_target_outside_the_vocabulary(target: int) -> None:
    logits = torch.zeros(2, 6)
    targets = torch.tensor([1, target])
    with pytest.raises(ScoreError, match=f"token 1 .* {target}, .* 4 columns"):
        token_scores(logits, targets, temperatures=(1.0,), entropy=True, valid_vocab=4)
    with pytest.raises(ScoreError, match="4 columns"):
        token_logp(logits[:, :4], targets, temperature=1.0)


def scored_together(*calls: tuple[Tensor, Tensor], then: Exception | None = None) -> int:
    reached = 0
    with deferred_checks():
        for logits, target in calls:
            token_scores(logits, target, temperatures=(1.0,), entropy=False)
            token_logp(logits, target, temperature=0.7)
            reached += 1
        if then is not None:
            raise then
    return reached


def test_deferred_checks_raise_the_error_of_the_first_bad_one() -> None:
    good, bad, target = torch.zeros(2, 4), torch.tensor([[0.0] * 4, [0.0, math.nan, 0.0, 0.0]]), torch.tensor([1, 2])
    assert scored_together((good, target), (good, target)) == 2
    with pytest.raises(NonFiniteScoreError, match="token 1"):
        scored_together((good, target), (bad, target), (good, target + 9))
    with pytest.raises(ScoreError, match=r"token 0 .* 10"):
        scored_together((good, target), (good, target + 9), (bad, target))
    with pytest.raises(KeyError):  # an error within is not covered up
        scored_together((bad, target), then=KeyError())
    with pytest.raises(NonFiniteScoreError):  # and afterwards each call is checked again
        token_scores(bad, target, temperatures=(1.0,), entropy=False)


def test_kept_nan_is_that_of_the_bad_token_alone() -> None:
    """Also of the entropy and the dropped mass; an id outside the vocabulary is still refused."""
    logits, target = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 3])
    asked = {"temperatures": (0.7, 1.0), "entropy": True, "dropped": True, "valid_vocab": 4}
    clean = token_scores(logits, target, **asked)
    logits[1, 0] = math.nan
    found = token_scores(logits, target, **asked, keep_nan=True)
    for kept, expected in ((found.logp, clean.logp), (found.entropy, clean.entropy), (found.dropped, clean.dropped)):
        assert kept is not None
        assert expected is not None
        assert bool(kept[..., 1].isnan().all())
        assert torch.equal(kept[..., ::2], expected[..., ::2])
    with pytest.raises(ScoreError, match="token 2 of those scored is 4"):
        token_scores(logits, torch.tensor([1, 2, 4]), **asked, keep_nan=True)
