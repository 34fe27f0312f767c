"""Masked columns at high temperatures, and logits at the edge of float32."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nemo_uecr.scoring.dense import score_logits, token_logp
from nemo_uecr.scoring.errors import NonFiniteScoreError
from nemo_uecr.scoring.fused_linear import CUDA_TILE_BYTES, CUDA_TILE_TOKENS, tile_for

from .conftest import QWEN3_VOCAB, float64_scores

MEBI = 2**20
HUGE = 3e38


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("masked", [-math.inf, -3e4])
@pytest.mark.parametrize("temperature", [1.0, 1.9, 10.0, 50.0, 80.0, 500.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masked_columns_weigh_nothing_at_any_temperature(temperature: float, masked: float, dtype: torch.dtype) -> None:
    # Were a masked column taken to lie 50 below the largest, 150,000 of them would outweigh the four real ones
    # already at T = 10: 150,000 exp(-5) = 1011.
    logits = torch.full((3, 150_004), masked)
    logits[:, [0, 70_000, 149_000, 150_003]] = torch.tensor([1.0, 0.0, -1.0, 2.0])
    logits = logits.to(dtype)
    target = torch.tensor([0, 70_000, 150_003])
    scores = score_logits(logits, target, temperatures=(temperature,), entropy=True)
    logp, _ = float64_scores(logits, target, temperature)
    _, entropy = float64_scores(logits, target, 1.0)
    assert (scores.logp_KN[0] - logp).abs().max() <= 1e-6
    assert scores.entropy_N is not None
    assert (scores.entropy_N - entropy).abs().max() <= 1e-6


def edge(dtype: torch.dtype) -> Tensor:
    """Two logits near the largest float, one near the smallest; in each order, over more than one block."""
    logits = torch.zeros(3, 9000)
    logits[0, [10, 8000]] = torch.tensor([HUGE, -HUGE])
    logits[1, [10, 8000]] = torch.tensor([-HUGE, HUGE])
    logits[2, :] = -HUGE
    logits[2, 8999] = HUGE
    return logits.to(dtype)


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 20.0])
def test_logits_at_the_edge_of_float32_are_scored_exactly_where_the_score_is_a_float32(
    dtype: torch.dtype, temperature: float
) -> None:
    logits = edge(dtype)
    target = torch.tensor([10, 8000, 8999])
    scores = score_logits(logits, target, temperatures=(temperature,), entropy=True)
    # One logit stands 3e38 above the rest: probability 1, entropy 0.
    assert scores.logp_KN[0].tolist() == [0.0, 0.0, 0.0]
    assert scores.entropy_N is not None
    # The AVX2 kernel lets exp(-87) stand for what is smaller.
    assert scores.entropy_N.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-28)
    expected = -float(logits[0, 10]) / temperature
    if math.isfinite(float(torch.tensor(expected))):  # not at T = 0.7: 3e38 / 0.7 is beyond 3.4e38
        at_zero = score_logits(logits[:2], torch.tensor([5, 5]), temperatures=(temperature,), entropy=True)
        assert at_zero.logp_KN[0].tolist() == pytest.approx([expected, expected], rel=1e-6)


@pytest.mark.usefixtures("reduction")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_log_probability_beyond_float32_is_refused_by_name(temperature: float) -> None:
    logits = edge(torch.float32)[:2]
    with pytest.raises(NonFiniteScoreError, match=r"token 1 at temperature .* beyond float32.*target 10"):
        score_logits(logits, torch.tensor([10, 10]), temperatures=(temperature,), entropy=True)
    with pytest.raises(NonFiniteScoreError, match=r"token 1 .* beyond float32"):
        token_logp(logits, torch.tensor([10, 10]), temperature=temperature)


def test_a_gpu_tile_takes_no_more_bytes_than_a_chunk_in_bfloat16() -> None:
    # 2048 tokens x 151,936 columns x 2 bytes = 593.5 MiB is the chunk; 256 MiB more are allowed.
    hidden = torch.empty(0, 2560, dtype=torch.bfloat16, device="meta")
    chunk = CUDA_TILE_TOKENS * QWEN3_VOCAB * 2
    for logits_dtype, size, tokens in ((None, 2, 2048), (torch.float32, 4, 1024)):
        tile = tile_for(hidden, QWEN3_VOCAB, logits_dtype)
        assert tile.tokens == tokens
        assert tile.tokens * QWEN3_VOCAB * size <= chunk
    whole = tile_for(hidden.float(), QWEN3_VOCAB, None)
    assert whole.tokens * QWEN3_VOCAB * 4 <= chunk
    # A shard of a few columns keeps to 2048 tokens, a vocabulary of a million to the bytes.
    assert tile_for(hidden, 1000, torch.float32).tokens == CUDA_TILE_TOKENS
    assert 0 < tile_for(hidden, 1_000_000, torch.float32).tokens * 4_000_000 <= CUDA_TILE_BYTES <= chunk + 256 * MEBI
