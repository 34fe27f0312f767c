from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.measure import collectives_begun
from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring.dense import token_logp, token_scores
from nemo_uecr.scoring.records import StatisticsLayout, VocabShard
from nemo_uecr.scoring.reduce import reduce_logits
from nemo_uecr.scoring.statistics import merge_shards
from tests.scoring.made import QWEN3_VOCAB, float64_scores, peaked_logits

OnRanks = Callable[..., list[Any]]
BOTH = {"temperatures": (1.0, 0.7), "entropy": True}


def cut(logits: Tensor, widths: list[int], rank: int) -> tuple[Tensor, VocabShard]:
    """This rank's columns and where they stand."""
    start = sum(widths[:rank])
    return logits[:, start : start + widths[rank]], VocabShard(start, None)


def score_shard(
    rank: int, size: int, logits: Tensor, target: Tensor, widths: list[int], options: dict[str, Any]
) -> Any:
    own, shard = cut(logits, widths, rank)
    scores = token_scores(own, target, shard=shard, **options)
    return scores.logp, scores.entropy, *(() if scores.dropped is None else (scores.dropped,))


@pytest.mark.parametrize(
    ("vocab", "widths", "dtype"),
    [
        (QWEN3_VOCAB, [76_005, 75_931], torch.bfloat16),
        (4099, [1367, 1367, 1365], torch.float32),
        (64, [64], torch.float32),
    ],
)
def test_shards_give_the_scores_of_the_whole(
    on_ranks: OnRanks, vocab: int, widths: list[int], dtype: torch.dtype
) -> None:
    logits, target = peaked_logits(6, vocab, 9.0, seed=1)
    logits = logits.to(dtype)
    results = on_ranks(len(widths), score_shard, logits, target, widths, BOTH)
    logp, entropy = float64_scores(logits, target, 1.0)
    logp_warm, _ = float64_scores(logits, target, 0.7)
    for result in results:
        assert (result[0] - torch.stack([logp, logp_warm])).abs().max() <= 5e-6
        assert (result[1] - entropy).abs().max() <= 5e-6
        for mine, first in zip(result, results[0], strict=True):
            assert torch.equal(mine, first), "ranks differ in a bit"


def test_padding_columns_and_whole_padding_shards_add_exactly_nothing(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(6, 1000, 9.0, seed=2)
    padded = torch.cat([logits, torch.full((6, 536), 50.0)], 1)
    # Three shards of 512: the second is half padding, the third nothing but padding.
    results = on_ranks(3, score_shard, padded, target, [512, 512, 512], {**BOTH, "valid_vocab": 1000})
    # The same real columns in shards of 512, 488 and none.
    plain = on_ranks(3, score_shard, logits, target, [512, 488, 0], BOTH)
    for result, reference in zip(results, plain, strict=True):
        for mine, theirs in zip(result, reference, strict=True):
            assert torch.equal(mine, theirs)


def test_the_mass_of_padding_columns_is_gathered_with_the_rest(on_ranks: OnRanks) -> None:
    """Half of the second shard and all of the third; on the first there is no padding."""
    logits, target = peaked_logits(6, 1536, 9.0, seed=2)
    target %= 700
    asked = {**BOTH, "dropped": True, "valid_vocab": 700}
    expected = logits.double().softmax(1)[:, 700:].sum(1)
    cut_off, _ = float64_scores(logits[:, :700], target, 1.0)
    for logp, _, dropped in on_ranks(3, score_shard, logits, target, [512, 512, 512], asked):
        assert (dropped - expected).abs().max() <= 1e-6
        assert (logp[0] - cut_off).abs().max() <= 5e-6


def test_shard_of_minus_infinity_adds_exactly_nothing(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(6, 700, 9.0, seed=2)
    masked = torch.cat([logits, torch.full((6, 700), -torch.inf)], 1)
    whole = token_scores(logits, target, **BOTH)
    for result in on_ranks(2, score_shard, masked, target, [700, 700], BOTH):
        assert torch.equal(result[0], whole.logp)
        assert torch.equal(result[1], whole.entropy)


def counted(rank: int, size: int, logits: Tensor, target: Tensor) -> list[int]:
    """Collectives begun after a call, a log-probability alone, its gradient, and two reductions."""
    own, shard = cut(logits, [500, 500], rank)
    leaf = own.clone().requires_grad_()
    counts = [collectives_begun()]
    token_scores(own, target, shard=shard, **BOTH)
    counts.append(collectives_begun())
    logp = token_logp(leaf, target, temperature=0.7, shard=shard)
    counts.append(collectives_begun())
    logp.sum().backward()
    counts.append(collectives_begun())
    for _ in range(2):
        dist.all_reduce(torch.ones(3))
    return [*counts, collectives_begun()]


def test_one_collective_a_call_and_none_for_the_gradient(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(30, 1000, 9.0, seed=3)
    for start, *later in on_ranks(2, counted, logits, target):
        assert [count - start for count in later] == [1, 2, 2, 4]


def sharded_gradient(rank: int, size: int, logits: Tensor, target: Tensor, weight: Tensor, padding: int) -> Any:
    own, shard = cut(logits, [600, logits.shape[1] - 600], rank)
    leaf = own.clone().requires_grad_()
    valid = logits.shape[1] - padding if padding else None
    logp = token_logp(leaf, target, temperature=0.7, valid_vocab=valid, shard=shard)
    (logp * weight).sum().backward()
    scores = token_scores(own, target, valid_vocab=valid, shard=shard, **BOTH)
    return logp.detach(), scores.at(0.7), leaf.grad


@pytest.mark.parametrize("padding", [0, 24])
def test_gradient_over_shards(on_ranks: OnRanks, padding: int) -> None:
    logits, target = peaked_logits(20, 1000, 9.0, seed=4)
    weight = torch.randn(20, generator=torch.Generator().manual_seed(2))
    padded = torch.cat([logits, torch.full((20, padding), 30.0)], 1)
    results = on_ranks(2, sharded_gradient, padded, target, weight, padding)
    leaf = logits.clone().requires_grad_()
    (token_logp(leaf, target, temperature=0.7) * weight).sum().backward()
    gathered = torch.cat([gradient for _, _, gradient in results], 1)
    assert (gathered[:, :1000] - leaf.grad).abs().max() <= 1e-6
    assert (gathered[:, 1000:] == 0).all()
    for trained, scored, _ in results:
        assert torch.equal(trained, scored), "training and scoring differ in a bit"


def message_of(call: Callable[[], Any]) -> str:
    """The error's kind and message."""
    try:
        call()
    except ScoreError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def bad_values(rank: int, size: int, logits: Tensor, target: Tensor) -> list[str]:
    """What every rank learns from the statistics alone, one call after another in one group."""
    own, shard = cut(logits, [50, 50], rank)
    spoilt = own.clone()
    spoilt[3, 7] = torch.nan if rank == 1 else spoilt[3, 7]
    options: dict[str, Any] = {"temperatures": (1.0,), "entropy": True, "shard": shard}
    return [
        message_of(lambda: token_scores(own, target * 0 + 95, valid_vocab=90, **options)),
        message_of(lambda: token_scores(spoilt, target, **options)),
        message_of(lambda: token_scores(own, target, **options)),
    ]


def test_bad_values_of_one_rank_are_an_error_on_all(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(8, 100, 9.0, seed=5)
    for outside, spoilt, good in on_ranks(2, bad_values, logits, target):
        assert outside.startswith("ScoreError: target of token 0 of those scored is 95")
        assert spoilt.startswith("NonFiniteScoreError: logits of token 3 of those scored")
        assert good == "no error"


def subgroup(rank: int, size: int, logits: Tensor, target: Tensor) -> Any:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own, shard = cut(logits, [500, 500], rank % 2)
    shard = VocabShard(shard.first_column, groups[rank // 2])
    return token_scores(own, target + rank // 2, temperatures=(1.0,), entropy=True, shard=shard).logp


def test_groups_side_by_side(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(10, 1000, 9.0, seed=6)
    target = target.clamp(max=998)
    for rank, found in enumerate(on_ranks(4, subgroup, logits, target)):
        expected = token_scores(logits, target + rank // 2, temperatures=(1.0,), entropy=False)
        assert (found - expected.logp).abs().max() <= 2e-6


def test_a_shard_without_columns_changes_no_bit() -> None:
    logits, target = peaked_logits(5, 300, 9.0, seed=1)
    layout = StatisticsLayout((1.0, 0.7), True)
    one, empty = reduce_logits(logits, target, layout, 0), reduce_logits(logits[:, :0], target, layout, 300)
    alone = merge_shards(one.unsqueeze(0), layout)
    for pair in ([one, empty], [empty, one]):
        assert torch.equal(merge_shards(torch.stack(pair), layout), alone)


@given(cuts=st.lists(st.integers(0, 97), max_size=5), log_z=st.sampled_from([0.0, 8.0, 25.0]))
@settings(max_examples=50, deadline=None)
def test_any_cut_of_the_vocabulary_merges_to_the_whole(cuts: list[int], log_z: float) -> None:
    logits, target = peaked_logits(4, 97, log_z, seed=2)
    layout = StatisticsLayout((1.0, 0.7), True)
    edges = [0, *sorted(cuts), 97]
    shards = torch.stack([reduce_logits(logits[:, a:b], target, layout, a) for a, b in pairwise(edges)])
    shifted = logits.double() - logits.double().amax(1, keepdim=True)
    merged = merge_shards(shards, layout)
    for row, expected in (
        (0, logits.double().amax(1)),
        (1, logits.double().gather(1, target.unsqueeze(1)).squeeze(1)),
        (2, shifted.exp().sum(1)),
        (3, (shifted / 0.7).exp().sum(1)),
        (4, (shifted * shifted.exp()).sum(1)),
    ):
        torch.testing.assert_close(merged[row], expected, rtol=1e-6, atol=1e-6)
