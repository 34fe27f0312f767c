from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.collectives import CollectiveCount
from nemo_uecr.scoring.agreement import Meeting
from nemo_uecr.scoring.dense import score_logits, token_logp
from nemo_uecr.scoring.shards import STAGED_BYTES, _exchange
from nemo_uecr.scoring.vocab_parallel import score_vocab_parallel, token_logp_vocab_parallel

from .conftest import QWEN3_VOCAB, float64_scores, peaked_logits

OnRanks = Callable[..., list[Any]]


def cut(logits: Tensor, widths: list[int], rank: int) -> tuple[Tensor, int]:
    """This rank's columns and where they start."""
    start = sum(widths[:rank])
    return logits[:, start : start + widths[rank]], start


def score_shard(
    rank: int, size: int, logits: Tensor, target: Tensor, widths: list[int], options: dict[str, Any]
) -> Any:
    shard, start = cut(logits, widths, rank)
    scores = score_vocab_parallel(shard, target, first_column=start, group=None, **options)
    return scores.logp_KN, scores.entropy_N, scores.top1_N


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
    options = {"temperatures": (1.0, 0.7), "entropy": True, "top1": True}
    results = on_ranks(len(widths), score_shard, logits, target, widths, options)
    logp, entropy = float64_scores(logits, target, 1.0)
    logp_warm, _ = float64_scores(logits, target, 0.7)
    whole = score_logits(logits, target, **options)
    for result in results:
        assert result.error is None, result.message
        assert (result.value[0] - torch.stack([logp, logp_warm])).abs().max() <= 5e-6
        assert (result.value[1] - entropy).abs().max() <= 5e-6
        assert torch.equal(result.value[2], whole.top1_N)
        for mine, first in zip(result.value, results[0].value, strict=True):
            assert torch.equal(mine, first), "ranks differ in a bit"


def test_padding_columns_and_whole_padding_shards_add_exactly_nothing(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(6, 1000, 9.0, seed=2)
    padded = torch.cat([logits, torch.full((6, 536), 50.0)], 1)
    options = {"temperatures": (1.0, 0.7), "entropy": True, "top1": True}
    # Three shards of 512: the second is half padding, the third nothing but padding.
    results = on_ranks(3, score_shard, padded, target, [512, 512, 512], {**options, "valid_vocab": 1000})
    # The same real columns in shards of 512, 488 and none.
    plain = on_ranks(3, score_shard, logits, target, [512, 488, 0], options)
    for result, reference in zip(results, plain, strict=True):
        assert result.error is None, result.message
        for mine, theirs in zip(result.value, reference.value, strict=True):
            assert torch.equal(mine, theirs)


def test_shard_of_minus_infinity_adds_exactly_nothing(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(6, 700, 9.0, seed=2)
    masked = torch.cat([logits, torch.full((6, 700), -torch.inf)], 1)
    options = {"temperatures": (1.0, 0.7), "entropy": True}
    results = on_ranks(2, score_shard, masked, target, [700, 700], options)
    whole = score_logits(logits, target, **options)
    assert whole.entropy_N is not None
    for result in results:
        assert result.error is None, result.message
        assert torch.equal(result.value[0], whole.logp_KN)
        assert torch.equal(result.value[1], whole.entropy_N)


def counted(rank: int, size: int, logits: Tensor, target: Tensor) -> list[Any]:
    """Collectives of two calls, and of a log-probability alone."""
    shard, start = cut(logits, [500, 500], rank)
    place: dict[str, Any] = {"first_column": start, "group": None}
    calls: list[Callable[[], Any]] = [
        lambda: score_vocab_parallel(shard, target, temperatures=(1.0, 0.7), entropy=True, top1=True, **place),
        lambda: score_vocab_parallel(shard, target, temperatures=(1.0, 0.7), entropy=True, top1=True, **place),
        lambda: token_logp_vocab_parallel(shard, target, temperature=0.7, **place),
        # Past torch.distributed and past the dispatcher: the count must see it all the same.
        lambda: dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([torch.ones(3)]).wait(),
    ]
    counts = []
    for call in calls:
        with CollectiveCount(torch.device("cpu")) as count:
            call()
        counts.append((count.at_backend, [(one.name, one.sent) for one in count.seen]))
    return counts


def test_one_collective_a_call(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(30, 1000, 9.0, seed=3)
    for result in on_ranks(2, counted, logits, target):
        assert result.error is None, result.message
        # Neither the first call of a group, which gets it its name, nor the second makes another: 5 statistics of 4
        # bytes a token. A log-probability alone sends 3: the largest logit, the target's, one sum.
        assert result.value[:2] == [(1, [("allgather_base", 30 * 20)])] * 2
        assert result.value[2] == (1, [("allgather_base", 30 * 12)])
        assert result.value[3][0] == 1


def sharded_gradient(rank: int, size: int, logits: Tensor, target: Tensor, weight: Tensor, padding: int) -> Any:
    widths = [600, logits.shape[1] - 600]
    shard, start = cut(logits, widths, rank)
    leaf = shard.clone().requires_grad_()
    valid = logits.shape[1] - padding if padding else None
    logp = token_logp_vocab_parallel(leaf, target, first_column=start, group=None, temperature=0.7, valid_vocab=valid)
    (logp * weight).sum().backward()
    scores = score_vocab_parallel(
        shard,
        target,
        first_column=start,
        group=None,
        temperatures=(1.0, 0.7),
        entropy=True,
        valid_vocab=valid,
    )
    return logp.detach(), scores.logp_KN[1], leaf.grad


@pytest.mark.parametrize("padding", [0, 24])
def test_gradient_over_shards(on_ranks: OnRanks, padding: int) -> None:
    logits, target = peaked_logits(20, 1000, 9.0, seed=4)
    weight = torch.randn(20, generator=torch.Generator().manual_seed(2))
    padded = torch.cat([logits, torch.full((20, padding), 30.0)], 1)
    results = on_ranks(2, sharded_gradient, padded, target, weight, padding)
    leaf = logits.clone().requires_grad_()
    (token_logp(leaf, target, temperature=0.7) * weight).sum().backward()
    assert all(result.error is None for result in results), results[0].message
    gathered = torch.cat([result.value[2] for result in results], 1)
    assert leaf.grad is not None
    assert (gathered[:, :1000] - leaf.grad).abs().max() <= 1e-6
    assert (gathered[:, 1000:] == 0).all()
    for result in results:
        assert torch.equal(result.value[0], result.value[1]), "training and scoring differ in a bit"


def with_nan(shard: Tensor) -> Tensor:
    spoilt = shard.clone()
    spoilt[3, 7] = torch.nan
    return spoilt


# What the last rank, or with "all: " every rank, changes in a good call.
CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "tokens": lambda c: {"shard": c["shard"][:7], "target": c["target"][:7]},
    "dtype": lambda c: {"shard": c["shard"].bfloat16()},
    "targets": lambda c: {"target": c["target"].flip(0)},
    "temperatures": lambda c: {"temperatures": (0.7,)},
    "overlap": lambda c: {"first_column": c["first_column"] - 1},
    # Shards of a vocabulary over four ranks in a group of two.
    "all: another group": lambda c: {
        "shard": c["shard"][:, :25],
        "first_column": c["first_column"] // 2,
        "valid_vocab": 100,
    },
    "refused": lambda c: {"shard": c["shard"].double()},
    "all: in the padding": lambda c: {"target": c["target"] * 0 + 95, "valid_vocab": 90},
    "not finite": lambda c: {"shard": with_nan(c["shard"])},
    "all: nothing wrong": lambda c: {},
}


def call_with(rank: int, size: int, case: str) -> None:
    logits, target = peaked_logits(8, 100, 9.0, seed=5)
    shard, start = cut(logits, [50, 50], rank)
    call = {"shard": shard, "target": target, "first_column": start}
    call |= {"temperatures": (1.0,), "entropy": True, "valid_vocab": None}
    if case.startswith("all: ") or rank == size - 1:
        call |= CHANGES[case](call)
    score_vocab_parallel(call.pop("shard"), call.pop("target"), group=None, **call)


MISFITS = {
    "tokens": (["ShardMismatchError"] * 2, "disagree on tokens: [8, 7]"),
    "dtype": (["ShardMismatchError"] * 2, "disagree on dtype"),
    "targets": (["ShardMismatchError"] * 2, "disagree on targets"),
    "temperatures": (["ShardMismatchError"] * 2, "disagree on temperatures"),
    "overlap": (["ShardMismatchError"] * 2, "starts at column 49, expected 50"),
    "all: another group": (["ShardMismatchError"] * 2, "hold 50 columns"),
    "refused": (["ShardMismatchError", "ScoringInputError"], "torch.float64"),
    "all: in the padding": (["TargetOutOfVocabularyError"] * 2, "expected 0 to 89"),
    "not finite": (["NonFiniteScoreError"] * 2, "token 3"),
}


def every_misfit(rank: int, size: int) -> list[tuple[str, str, str]]:
    """One after another in one group: an error must leave the group fit for the next call."""
    seen = []
    for case in MISFITS:
        try:
            call_with(rank, size, case)
        except ValueError as error:
            seen.append((case, type(error).__name__, str(error)))
    call_with(rank, size, "all: nothing wrong")
    return seen


def test_bad_input_is_a_named_error_on_every_rank(on_ranks: OnRanks) -> None:
    results = on_ranks(2, every_misfit)
    for rank, result in enumerate(results):
        assert result.error is None, result.message
        assert [case for case, _, _ in result.value] == list(MISFITS)
        for case, name, message in result.value:
            names, words = MISFITS[case]
            assert name == names[rank], f"{case}: {message}"
            assert words in message, case


def subgroup(rank: int, size: int, logits: Tensor, target: Tensor) -> Any:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    shard, start = cut(logits, [500, 500], rank % 2)
    scores = score_vocab_parallel(
        shard, target + rank // 2, first_column=start, group=mine, temperatures=(1.0,), entropy=True
    )
    return scores.logp_KN


def test_groups_side_by_side(on_ranks: OnRanks) -> None:
    logits, target = peaked_logits(10, 1000, 9.0, seed=6)
    target = target.clamp(max=998)
    results = on_ranks(4, subgroup, logits, target)
    for rank, result in enumerate(results):
        assert result.error is None, result.message
        expected = score_logits(logits, target + rank // 2, temperatures=(1.0,), entropy=False)
        assert (result.value - expected.logp_KN).abs().max() <= 2e-6


def exchanged_over_used_memory(rank: int, size: int) -> list[float]:
    """Each rank writes its own part, into memory that others have used, so large that the ranks add in place."""
    gathered_RWN = torch.full((size, 4, STAGED_BYTES // 16), 7.0)
    gathered_RWN[rank] = rank + 1.0
    with Meeting(None) as meeting:
        _exchange(gathered_RWN, meeting)
    assert bool((gathered_RWN == gathered_RWN[:, :1, :1]).all())
    return gathered_RWN[:, 0, 0].tolist()


def test_ranks_that_add_in_place_clear_what_is_not_theirs(on_ranks: OnRanks) -> None:
    # The middle rank of three has parts of others on both sides.
    for result in on_ranks(3, exchanged_over_used_memory):
        assert result.error is None, result.message
        assert result.value == [1.0, 2.0, 3.0]
