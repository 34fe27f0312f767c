from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nemo_uecr.scoring.dense import score_logits, token_logp
from nemo_uecr.scoring.errors import (
    NonFiniteScoreError,
    ScoringInputError,
    TargetOutOfVocabularyError,
)
from nemo_uecr.scoring.fused_linear import score_hidden

from .conftest import QWEN3_VOCAB, float64_scores, peaked_logits

ERROR_BOUND = 5e-6


@pytest.mark.usefixtures("reduction")
def test_hand_values() -> None:
    # exp(z) = 1, 2, 5: p = 1/8, 2/8, 5/8. Target 1: ln(1/4) = -1.3862944.
    # H = (1/8) ln 8 + (1/4) ln 4 + (5/8) ln 1.6 = 0.2599302 + 0.3465736 + 0.2937523 = 0.9002561.
    # At T = 1/2 the weights are squared, 1, 4, 25: ln(4/30) = -2.0149030.
    logits = torch.tensor([[0.0, math.log(2.0), math.log(5.0)]])
    scores = score_logits(logits, torch.tensor([1]), temperatures=(0.5, 1.0), entropy=True, top1=True)
    torch.testing.assert_close(scores.logp_KN, torch.tensor([[-2.0149030], [-1.3862944]]), rtol=0, atol=2e-7)
    assert scores.entropy_N is not None
    assert scores.top1_N is not None
    torch.testing.assert_close(scores.entropy_N, torch.tensor([0.9002561]), rtol=0, atol=2e-7)
    assert scores.top1_N.tolist() == [False]


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("log_z", [8.0, 25.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [QWEN3_VOCAB, 37_987, 4097, 61, 1])
def test_error_against_float64(vocab: int, dtype: torch.dtype, log_z: float) -> None:
    logits, target = peaked_logits(6, vocab, log_z, seed=3)
    logits = logits.to(dtype)
    scores = score_logits(logits, target, temperatures=(1.0, 0.7), entropy=True)
    for row, temperature in enumerate((1.0, 0.7)):
        logp, entropy = float64_scores(logits, target, temperature)
        assert (scores.logp_KN[row] - logp).abs().max() <= ERROR_BOUND
        if temperature == 1.0:
            assert scores.entropy_N is not None
            assert (scores.entropy_N - entropy).abs().max() <= ERROR_BOUND
            assert (scores.entropy_N >= 0).all()


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("vocab", [QWEN3_VOCAB, QWEN3_VOCAB - 27, 4000])
def test_no_phantom_columns_where_the_vocabulary_is_no_power_of_two(vocab: int) -> None:
    # One column of logit 0 beyond the last real one would add exp(-4) = 0.018 at log Z = 4.
    logits, target = peaked_logits(4, vocab, 4.0, seed=4)
    logp, _ = float64_scores(logits, target, 1.0)
    scores = score_logits(logits, target, temperatures=(1.0,), entropy=False)
    assert (scores.logp_KN[0] - logp).abs().max() <= ERROR_BOUND


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("filler", [0.0, 1e30, math.nan, math.inf])
def test_padding_columns_change_no_bit(filler: float) -> None:
    logits, target = peaked_logits(9, 1000, 12.0, seed=5)
    padded = torch.cat([logits, torch.full((9, 24), filler)], 1)
    plain = score_logits(logits, target, temperatures=(1.0, 0.7), entropy=True, top1=True)
    masked = score_logits(padded, target, temperatures=(1.0, 0.7), entropy=True, top1=True, valid_vocab=1000)
    assert torch.equal(plain.logp_KN, masked.logp_KN)
    assert plain.entropy_N is not None
    assert masked.entropy_N is not None
    assert torch.equal(plain.entropy_N, masked.entropy_N)


@pytest.mark.usefixtures("reduction")
def test_minus_infinity_is_a_column_of_probability_zero() -> None:
    logits, target = peaked_logits(5, 300, 12.0, seed=6)
    masked = torch.cat([logits, torch.full((5, 9000), -math.inf)], 1)
    masked = masked[:, torch.randperm(9300, generator=torch.Generator().manual_seed(0)).argsort()]
    column = (masked == logits.gather(1, target.unsqueeze(1))).float().argmax(1)
    scores = score_logits(masked, column, temperatures=(1.0, 0.7), entropy=True)
    logp, entropy = float64_scores(logits, target, 1.0)
    assert scores.entropy_N is not None
    assert (scores.logp_KN[0] - logp).abs().max() <= ERROR_BOUND
    assert (scores.entropy_N - entropy).abs().max() <= ERROR_BOUND


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize(("tokens", "vocab"), [(5, QWEN3_VOCAB), (7, 33_000), (2500, 61)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logp_has_the_bits_of_score_logits_whatever_the_batching(
    tokens: int, vocab: int, dtype: torch.dtype, temperature: float
) -> None:
    logits, target = peaked_logits(tokens, vocab, 15.0, seed=7)
    logits = logits.to(dtype)
    temperatures = (0.7, 1.0, 2.0)
    whole = score_logits(logits, target, temperatures=temperatures, entropy=True)
    expected = whole.logp_KN[temperatures.index(temperature)]
    for start, stop in ((0, tokens), (0, 1), (1, tokens), (tokens // 2, tokens - 1)):
        part = logits[start:stop].clone().requires_grad_()
        logp = token_logp(part, target[start:stop], temperature=temperature)
        assert torch.equal(logp.detach(), expected[start:stop])


@pytest.mark.usefixtures("reduction")
def test_bits_do_not_depend_on_threads() -> None:
    logits, target = peaked_logits(24, QWEN3_VOCAB, 15.0, seed=8)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(score_logits(logits, target, temperatures=(1.0, 0.7), entropy=True))
            part = score_logits(logits[:1], target[:1], temperatures=(1.0, 0.7), entropy=True)
            assert torch.equal(part.logp_KN, results[-1].logp_KN[:, :1])
    finally:
        torch.set_num_threads(before)
    assert (results[0].logp_KN - results[1].logp_KN).abs().max() <= 2e-6


def reference_gradient(logits: Tensor, target: Tensor, temperature: float, weight: Tensor) -> Tensor:
    leaf = logits.detach().double().requires_grad_()
    logp = torch.log_softmax(leaf / temperature, -1).gather(1, target.unsqueeze(1)).squeeze(1)
    (logp * weight.double()).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize(("tokens", "vocab"), [(300, 61), (3, 33_000)])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
def test_gradient_against_float64(tokens: int, vocab: int, temperature: float) -> None:
    logits, target = peaked_logits(tokens, vocab, 9.0, seed=9)
    weight = torch.randn(tokens, generator=torch.Generator().manual_seed(1))
    expected = reference_gradient(logits, target, temperature, weight)
    for dtype, bound in ((torch.float32, 2e-6), (torch.bfloat16, 2e-2)):
        leaf = logits.to(dtype).detach().requires_grad_()
        (token_logp(leaf, target, temperature=temperature) * weight).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.dtype == dtype
        if dtype == torch.bfloat16:
            expected = reference_gradient(leaf, target, temperature, weight)
        assert (leaf.grad.double() - expected).abs().max() <= bound


def test_no_gradient_and_no_graph_from_score_logits() -> None:
    logits = torch.randn(3, 11, requires_grad=True)
    scores = score_logits(logits, torch.tensor([1, 2, 3]), temperatures=(1.0,), entropy=True)
    assert not scores.logp_KN.requires_grad


def test_temperatures_come_back_in_the_order_asked() -> None:
    logits, target = peaked_logits(4, 50, 9.0, seed=10)
    scores = score_logits(logits, target, temperatures=(0.7, 1.0, 0.7), entropy=False)
    assert torch.equal(scores.logp_KN[0], scores.logp_KN[2])
    assert torch.equal(scores.logp_KN[1], score_logits(logits, target, temperatures=(1.0,), entropy=True).logp_KN[0])


@pytest.mark.usefixtures("reduction")
def test_top1_counts_ties() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 5.0, 1.0], [4.0, 1.0, 2.0]])
    scores = score_logits(logits, torch.tensor([2, 1, 2]), temperatures=(1.0,), entropy=False, top1=True)
    assert scores.top1_N is not None
    assert scores.top1_N.tolist() == [True, True, False]


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top1_is_no_near_tie(dtype: torch.dtype) -> None:
    # One step below 2.5: 2.5 - 2^-22 in float32, 2.5 - 2^-6 in bfloat16.
    near = 2.5 - (2.0**-22 if dtype == torch.float32 else 2.0**-6)
    logits = torch.tensor([[near, 2.5, 0.0], [2.5, near, 0.0]]).to(dtype)
    assert float(logits[0, 0]) == near
    scores = score_logits(logits, torch.tensor([0, 0]), temperatures=(1.0,), entropy=False, top1=True)
    assert scores.top1_N is not None
    assert scores.top1_N.tolist() == [False, True]


def test_strided_logits() -> None:
    logits, target = peaked_logits(6, 500, 9.0, seed=11)
    turned = logits.T.contiguous().T
    apart = torch.cat([logits, logits], 1)[:, :500]
    expected = score_logits(logits, target, temperatures=(1.0,), entropy=True)
    for view in (turned, apart):
        scores = score_logits(view, target, temperatures=(1.0,), entropy=True)
        assert (scores.logp_KN - expected.logp_KN).abs().max() <= 1e-6


@pytest.mark.usefixtures("reduction")
@given(
    rows=st.lists(st.lists(st.floats(-60, 60, width=32), min_size=4, max_size=4), min_size=1, max_size=5),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.5]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[])
def test_any_four_logits(rows: list[list[float]], temperature: float) -> None:
    logits = torch.tensor(rows)
    for column in range(4):
        target = torch.full((len(rows),), column)
        scores = score_logits(logits, target, temperatures=(temperature,), entropy=True)
        logp, _ = float64_scores(logits, target, temperature)
        _, entropy = float64_scores(logits, target, 1.0)
        assert (scores.logp_KN[0] - logp).abs().max() <= 1e-6 * max(1.0, float(logp.abs().max()))
        assert scores.entropy_N is not None
        assert (scores.entropy_N - entropy).abs().max() <= 1e-6


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("vocab", [61, 10_000])
def test_non_finite_logit_is_refused_wherever_it_stands(value: float, vocab: int) -> None:
    for column in (0, 17, vocab - 1):
        logits, target = peaked_logits(4, vocab, 9.0, seed=12)
        logits[2, column] = value
        with pytest.raises(NonFiniteScoreError, match="token 2"):
            score_logits(logits, target, temperatures=(1.0,), entropy=True)
        with pytest.raises(NonFiniteScoreError, match="token 2"):
            score_logits(logits, target, temperatures=(0.7,), entropy=False)


@pytest.mark.usefixtures("reduction")
def test_row_without_a_finite_logit_is_refused() -> None:
    logits = torch.zeros(3, 5000)
    logits[1] = -math.inf
    with pytest.raises(NonFiniteScoreError, match="token 1"):
        score_logits(logits, torch.tensor([0, 0, 0]), temperatures=(1.0,), entropy=True)


def test_target_of_probability_zero_is_refused() -> None:
    logits = torch.zeros(2, 4)
    logits[1, 3] = -math.inf
    with pytest.raises(NonFiniteScoreError, match="token 1"):
        score_logits(logits, torch.tensor([3, 3]), temperatures=(1.0,), entropy=True)


def test_token_number_in_the_message_counts_over_chunks() -> None:
    logits = torch.zeros(9000, 4)
    logits[8191, 2] = math.nan
    with pytest.raises(NonFiniteScoreError, match="token 8191"):
        score_logits(logits, torch.zeros(9000, dtype=torch.long), temperatures=(1.0,), entropy=True)


@pytest.mark.parametrize("target", [-1, 4, 10**12])
def test_target_outside_the_vocabulary(target: int) -> None:
    logits = torch.zeros(2, 6)
    targets = torch.tensor([1, target])
    with pytest.raises(TargetOutOfVocabularyError, match=f"{target}, expected 0 to 3"):
        score_logits(logits, targets, temperatures=(1.0,), entropy=True, valid_vocab=4)
    with pytest.raises(TargetOutOfVocabularyError):
        token_logp(logits[:, :4], targets, temperature=1.0)


BAD_ARGUMENTS = {
    "no token": (torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), {}, "no token"),
    "no column": (torch.zeros(2, 0), torch.zeros(2, dtype=torch.long), {}, "no column"),
    "three dimensions": (torch.zeros(2, 3, 4), torch.zeros(2, dtype=torch.long), {}, "two dimensions"),
    "float64 logits": (torch.zeros(2, 4).double(), torch.zeros(2, dtype=torch.long), {}, "float64"),
    "integer logits": (torch.zeros(2, 4).long(), torch.zeros(2, dtype=torch.long), {}, "int64"),
    "too few targets": (torch.zeros(2, 4), torch.zeros(1, dtype=torch.long), {}, r"expected \(2,\)"),
    "float targets": (torch.zeros(2, 4), torch.zeros(2), {}, "token ids"),
    "temperature 0": (torch.zeros(2, 4), torch.zeros(2).long(), {"temperatures": (0.0,)}, "above 0"),
    "temperature nan": (torch.zeros(2, 4), torch.zeros(2).long(), {"temperatures": (math.nan,)}, "above 0"),
    "nothing asked": (torch.zeros(2, 4), torch.zeros(2).long(), {"temperatures": (), "entropy": False}, "nothing"),
    "valid_vocab 0": (torch.zeros(2, 4), torch.zeros(2).long(), {"valid_vocab": 0}, "1 to 4"),
    "valid_vocab 5": (torch.zeros(2, 4), torch.zeros(2).long(), {"valid_vocab": 5}, "1 to 4"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(case: str) -> None:
    logits, target, changes, message = BAD_ARGUMENTS[case]
    options = {"temperatures": (1.0,), "entropy": True, **changes}
    with pytest.raises(ScoringInputError, match=message) as caught:
        score_logits(logits, target, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["yes", 1, None, torch.tensor(True)])
def test_a_switch_is_true_or_false(value: Any) -> None:
    """Any other value would count as one of the two without a word."""
    logits = torch.zeros(1, 4)
    target = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ScoringInputError, match=r"^top1 is .*, expected True or False"):
        score_logits(logits, target, temperatures=(1.0,), entropy=True, top1=value)
    with pytest.raises(ScoringInputError, match=r"^top1 is .*, expected True or False"):
        score_hidden(torch.zeros(1, 2), torch.zeros(4, 2), target, temperatures=(1.0,), entropy=True, top1=value)
