from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.dense import score_logits
from nemo_uecr.scoring.fused_linear import CUDA_TILE_BYTES, CUDA_TILE_TOKENS, score_hidden, tile_for
from nemo_uecr.scoring.records import NonFiniteScoreError, VocabShard

from .conftest import QWEN3_VOCAB, float64_scores

HIDDEN = 48


def problem(tokens: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens + vocab)
    hidden = torch.randn(tokens, HIDDEN, generator=generator).to(dtype)
    weight = (torch.randn(vocab, HIDDEN, generator=generator) * 0.6).to(dtype)
    return hidden, weight, torch.randint(0, vocab, (tokens,), generator=generator)


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize(("tokens", "vocab"), [(3, 50), (257, 40_000)])
def test_float32_against_float64(tokens: int, vocab: int) -> None:
    hidden, weight, target = problem(tokens, vocab, torch.float32)
    scores = score_hidden(hidden, weight, target, temperatures=(1.0, 0.7), entropy=True)
    logits = hidden.double() @ weight.double().T
    for row, temperature in enumerate((1.0, 0.7)):
        logp, entropy = float64_scores(logits, target, temperature)
        assert (scores.logp[row] - logp).abs().max() <= 1e-5
        if row == 0:
            assert (scores.entropy - entropy).abs().max() <= 1e-5


def test_default_precision_gives_the_logits_of_an_ordinary_output_layer() -> None:
    hidden, weight, target = problem(40, 3000, torch.bfloat16)
    ordinary = score_logits(hidden @ weight.T, target, temperatures=(1.0,), entropy=True)
    fused = score_hidden(hidden, weight, target, temperatures=(1.0,), entropy=True)
    assert (fused.logp - ordinary.logp).abs().max() <= 5e-6


def test_float32_logits_remove_the_rounding_of_bfloat16() -> None:
    hidden, weight, target = problem(40, 3000, torch.bfloat16)
    logp, entropy = float64_scores(hidden.double() @ weight.double().T, target, 1.0)
    options: dict[str, Any] = {"temperatures": (1.0,), "entropy": True}
    rounded = score_hidden(hidden, weight, target, **options)
    kept = score_hidden(hidden, weight, target, logits_dtype=torch.float32, **options)
    assert (kept.logp[0] - logp).abs().max() <= 1e-5
    assert (kept.entropy - entropy).abs().max() <= 1e-5
    assert (rounded.logp[0] - logp).abs().max() > 1e-3


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements of any tensor an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.untyped_storage().nbytes():
            self.elements = max(self.elements, result.untyped_storage().nbytes() // result.element_size())
        return result


def test_no_logits_of_all_tokens_by_all_columns_exist() -> None:
    hidden, weight, target = problem(700, 9000, torch.float32)
    with LargestTensor() as largest:
        score_hidden(hidden, weight, target, temperatures=(1.0,), entropy=True)
    # The weight (9000 x 48) and one tile (1 MiB of float32) are the largest tensors; logits would be 6.3 million.
    assert largest.elements <= max(9000 * HIDDEN, 1 << 18)


def fused_shard(rank: int, size: int, problem_: tuple[Tensor, ...], widths: list[int], valid: int | None) -> Any:
    hidden, weight, target = problem_
    start = sum(widths[:rank])
    scores = score_hidden(
        hidden,
        weight[start : start + widths[rank]],
        target,
        shard=VocabShard(start, None),
        temperatures=(1.0, 0.7),
        entropy=True,
        valid_vocab=valid,
    )
    return scores.logp, scores.entropy


@pytest.mark.parametrize(("widths", "valid"), [([2500, 2503], None), ([2600, 2600, 300], 5003)])
def test_over_shards(on_ranks: Callable[..., list[Any]], widths: list[int], valid: int | None) -> None:
    hidden, weight, target = problem(300, 5003, torch.float32)
    padded = torch.cat([weight, torch.full((sum(widths) - 5003, HIDDEN), 9.0)])
    whole = score_hidden(hidden, weight, target, temperatures=(1.0, 0.7), entropy=True)
    results = on_ranks(len(widths), fused_shard, (hidden, padded, target), widths, valid)
    for logp, entropy in results:
        assert (logp - whole.logp).abs().max() <= 1e-5
        assert (entropy - whole.entropy).abs().max() <= 1e-5
        assert torch.equal(logp, results[0][0])


def test_a_gpu_tile_takes_no_more_bytes_than_a_chunk_in_bfloat16() -> None:
    # 2048 tokens x 151,936 columns x 2 bytes = 593.5 MiB is the chunk; 256 MiB more are allowed.
    hidden = torch.empty(0, 2560, dtype=torch.bfloat16, device="meta")
    chunk = CUDA_TILE_TOKENS * QWEN3_VOCAB * 2
    for logits_dtype, size, tokens in ((None, 2, 2048), (torch.float32, 4, 1024)):
        tile = tile_for(hidden, QWEN3_VOCAB, logits_dtype)
        assert tile.tokens == tokens
        assert tile.tokens * QWEN3_VOCAB * size <= chunk
    # A shard of a few columns keeps to 2048 tokens, a vocabulary of a million to the bytes.
    assert tile_for(hidden, 1000, torch.float32).tokens == CUDA_TILE_TOKENS
    assert 0 < tile_for(hidden, 1_000_000, torch.float32).tokens * 4_000_000 <= CUDA_TILE_BYTES <= chunk + 256 * 2**20


def test_bad_arguments() -> None:
    hidden, weight, target = problem(3, 50, torch.float32)
    options: dict[str, Any] = {"temperatures": (1.0,), "entropy": True}
    with pytest.raises(ScoreError, match="bfloat16"):
        score_hidden(hidden, weight.bfloat16(), target, **options)
    with pytest.raises(ScoreError, match="of 50 columns"):
        score_hidden(hidden, weight, target + 50, **options)
    hidden[1, 3] = torch.nan
    with pytest.raises(NonFiniteScoreError, match="token 1"):
        score_hidden(hidden, weight, target, **options)
