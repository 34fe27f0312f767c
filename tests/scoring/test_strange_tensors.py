"""Tensors that are not what a kernel expects: another default dtype, views with a sign put off, no dense values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.masked import masked_tensor
from torch.nn.parameter import UninitializedParameter

from nemo_uecr.scoring import native
from nemo_uecr.scoring.dense import score_logits, token_logp
from nemo_uecr.scoring.errors import ScoringInputError
from nemo_uecr.scoring.fused_linear import score_hidden, score_hidden_vocab_parallel
from nemo_uecr.scoring.records import StatisticsLayout, TokenScores
from nemo_uecr.scoring.shards import target_digest
from nemo_uecr.scoring.vocab_parallel import score_vocab_parallel

from .conftest import peaked_logits

OTHER_DEFAULTS = [torch.float64, torch.bfloat16, torch.float16]
# The native kernel takes 1 and 0.7; the last two go to torch, in the same call.
OPTIONS: dict[str, Any] = {"temperatures": (1.0, 0.7, 1e-4, 100.0), "entropy": True, "top1": True}
needs_native = pytest.mark.skipif(not native.native_is_built(), reason="no C compiler or no AVX2 here")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def factors(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states and a weight of so many rows that the tiles fill more than one group."""
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(5, 16, generator=generator, dtype=torch.float32).to(dtype)
    weight = torch.randn(20_000, 16, generator=generator, dtype=torch.float32).to(dtype)
    return hidden, weight, torch.randint(0, 20_000, (5,), generator=generator)


def same_bits(ours: TokenScores, theirs: TokenScores) -> bool:
    assert ours.entropy_N is not None
    assert theirs.entropy_N is not None
    return (
        ours.logp_KN.dtype == ours.entropy_N.dtype == torch.float32
        and torch.equal(ours.logp_KN, theirs.logp_KN)
        and torch.equal(ours.entropy_N, theirs.entropy_N)
    )


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("default", OTHER_DEFAULTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_default_dtype_changes_no_bit(default: torch.dtype, dtype: torch.dtype) -> None:
    hidden, weight, target = factors(dtype)
    logits = hidden @ weight.T
    options: dict[str, Any] = {**OPTIONS, "logits_dtype": torch.float32}

    def score() -> tuple[TokenScores, TokenScores, Tensor, Tensor]:
        leaf = logits.detach().requires_grad_()
        logp_N = token_logp(leaf, target, temperature=0.7)
        logp_N.sum().backward()
        assert leaf.grad is not None
        return (
            score_hidden(hidden, weight, target, **options),
            score_logits(logits, target, **OPTIONS),
            logp_N.detach(),
            leaf.grad,
        )

    expected = score()
    with default_dtype(default):
        found = score()
    assert same_bits(found[0], expected[0])
    assert same_bits(found[1], expected[1])
    assert torch.equal(found[2], expected[2])
    assert torch.equal(found[3], expected[3])


def sharded_both_ways(rank: int, size: int) -> tuple[TokenScores, TokenScores]:
    hidden, weight, target = factors(torch.float32)
    own, place = slice(10_000 * rank, 10_000 * (rank + 1)), {"first_column": 10_000 * rank, "group": None}
    return (
        score_hidden_vocab_parallel(hidden, weight[own], target, **place, **OPTIONS),
        score_vocab_parallel((hidden @ weight.T)[:, own], target, **place, **OPTIONS),
    )


def sharded_under_each_default(rank: int, size: int) -> list[bool]:
    expected = sharded_both_ways(rank, size)
    found = []
    for default in OTHER_DEFAULTS:
        with default_dtype(default):
            pairs = zip(sharded_both_ways(rank, size), expected, strict=True)
            found.append(all(same_bits(ours, theirs) for ours, theirs in pairs))
    return found


def test_the_default_dtype_changes_no_bit_over_shards(on_ranks: Callable[..., list[Any]]) -> None:
    for result in on_ranks(2, sharded_under_each_default):
        assert result.error is None, result.message
        assert result.value == [True] * 3


@pytest.mark.usefixtures("reduction")
def test_a_sign_that_torch_has_put_off_counts() -> None:
    logits, target = peaked_logits(4, 300, 9.0, seed=3)
    late = torch.complex(logits, -logits).conj().imag[:, ::1]  # imag of z - iz, conjugated: z, with the sign put off
    dense = torch._neg_view(-logits)
    assert late.is_neg()
    assert dense.is_neg()
    assert dense.stride(1) == 1
    expected = score_logits(logits, target, **OPTIONS)
    for view in (late, dense):
        assert same_bits(score_logits(view, target, **OPTIONS), expected)
    signed = torch._neg_view(-target)
    assert same_bits(score_logits(logits, signed, **OPTIONS), expected)
    assert target_digest(signed) == target_digest(target)


STRANGE = (
    "freed",
    "cut short",
    "zeros without memory",
    "fake",
    "fake beside real ones",
    "masked",
    "uninitialized",
    "hostile",
)


class Hostile(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("touched")


def fake(beside_real: bool) -> Tensor:
    with FakeTensorMode(allow_non_fake_inputs=beside_real):
        return torch.ones(2, 4)


def without_values() -> dict[str, tuple[Tensor, str]]:
    rows, freed, short = torch.ones(2, 4), torch.ones(2, 4), torch.ones(2, 4)
    freed.untyped_storage().resize_(0)
    short.untyped_storage().resize_(16)
    return {
        "sparse": (rows.to_sparse(), "torch.sparse_coo tensor"),
        "CSR": (rows.to_sparse_csr(), "torch.sparse_csr tensor"),
        "nested": (torch.nested.nested_tensor([rows[0], rows[1]]), "nested tensor"),
        "jagged": (torch.nested.nested_tensor([rows[0], rows[1]], layout=torch.jagged), "subclass NestedTensor"),
        "meta": (rows.to("meta"), "meta device"),
        "freed": (freed, "no memory of its own"),
        "cut short": (short, "no memory of its own"),
        "zeros without memory": (torch._efficientzerotensor(2, 4), "no memory of its own"),
        "fake": (fake(False), "subclass FakeTensor"),
        "fake beside real ones": (fake(True), "subclass FakeTensor"),
        "masked": (masked_tensor(rows, rows > 0), "subclass MaskedTensor"),
        "uninitialized": (UninitializedParameter(), "subclass UninitializedParameter"),
        "hostile": (rows.as_subclass(Hostile), "subclass Hostile"),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ["sparse", "CSR", "nested", "jagged", "meta", *STRANGE])
def test_a_tensor_without_dense_values_is_refused(kind: str) -> None:
    rows, said = without_values()[kind]
    target = torch.tensor([1, 2])
    options: dict[str, Any] = {"temperatures": (1.0,), "entropy": True}
    calls: list[Callable[[], object]] = [
        lambda: score_logits(rows, target, **options),
        lambda: token_logp(rows, target, temperature=1.0),
        lambda: score_hidden(rows, torch.ones(7, 4), target, **options),
        lambda: score_hidden(torch.ones(2, 4), rows, target, **options),
        lambda: score_logits(torch.ones(2, 4), rows, **options),
    ]
    for call in calls:
        with pytest.raises(ScoringInputError, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_what_a_transform_of_torch_func_wraps_is_refused() -> None:
    target = torch.tensor([1, 2])

    def entropy(rows: Tensor) -> Tensor:
        scores = score_logits(rows, target, temperatures=(1.0,), entropy=True)
        assert scores.entropy_N is not None
        return scores.entropy_N

    with pytest.raises(ScoringInputError, match="wraps it"):
        torch.vmap(entropy)(torch.ones(3, 2, 4))
    with pytest.raises(ScoringInputError, match="wraps it"):
        torch.func.grad(lambda rows: entropy(rows).sum())(torch.ones(2, 4))


def test_a_parameter_is_a_plain_tensor() -> None:
    hidden, weight, target = factors(torch.float32)
    plain = score_hidden(hidden, weight, target, **OPTIONS)
    assert same_bits(score_hidden(hidden, torch.nn.Parameter(weight), target, **OPTIONS), plain)


@pytest.mark.parametrize("digits", [5000, 30])
def test_an_int_that_nothing_can_count_to_is_refused(digits: int) -> None:
    rows, target, value = torch.ones(2, 4), torch.tensor([1, 2]), 10**digits
    with pytest.raises(ScoringInputError, match=r"valid_vocab is .* at most 2\^62"):
        score_logits(rows, target, temperatures=(1.0,), entropy=True, valid_vocab=value)
    with pytest.raises(ScoringInputError, match=r"temperature is "):
        token_logp(rows, target, temperature=10 * value)


ROWS, STATS = torch.zeros(3, 40), torch.zeros(4, 3)
MISREAD: dict[str, tuple[Tensor, Tensor]] = {
    "float64 logits": (ROWS.double(), STATS),
    "integer logits": (ROWS.int(), STATS),
    "strided logits": (torch.zeros(40, 3).T, STATS),
    "one row of logits": (ROWS[0], STATS),
    "logits with a sign put off": (torch._neg_view(ROWS), STATS),
    "logits without memory": (torch._efficientzerotensor(3, 40), STATS),
    "meta logits": (ROWS.to("meta"), STATS),
    "sparse logits": (ROWS.to_sparse(), STATS),
    "bfloat16 statistics": (ROWS, STATS.bfloat16()),
    "float64 statistics": (ROWS, STATS.double()),
    "too few statistics": (ROWS, STATS[:3]),
    "statistics of fewer tokens": (ROWS, STATS[:, :2]),
    "strided statistics": (ROWS, torch.zeros(3, 4).T),
}


@needs_native
@pytest.mark.parametrize("case", MISREAD)
def test_the_compiled_code_sees_no_memory_that_it_would_misread(case: str) -> None:
    logits, stats = MISREAD[case]
    before = stats.clone()
    with pytest.raises(ScoringInputError, match=r"logits_NV|stats_WN"):
        native.reduce_natively(logits, StatisticsLayout((1.0,), True), stats)
    assert torch.equal(stats, before)
