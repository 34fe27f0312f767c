"""What keeps the ranks of a group together: groups that follow each other on one store, late and bad callers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring import shards
from nemo_uecr.scoring.dense import score_logits
from nemo_uecr.scoring.shards import target_digest
from nemo_uecr.scoring.vocab_parallel import score_vocab_parallel

from .conftest import DIES_ON_PURPOSE, GLOO_TIMEOUT_S, peaked_logits

OnRanks = Callable[..., list[Any]]
TIMEOUT = timedelta(seconds=GLOO_TIMEOUT_S)


def entropies(rank: int, tokens: int) -> Tensor:
    """A correct call of this many tokens over two ranks."""
    logits, target = peaked_logits(tokens, 100, 9.0, seed=tokens)
    shard = logits[:, 50 * rank : 50 * rank + 50]
    scores = score_vocab_parallel(shard, target, first_column=50 * rank, group=None, temperatures=(1.0,), entropy=True)
    assert scores.entropy_N is not None
    return scores.entropy_N


def forget_torch(store: Any, rank: int, life: str) -> None:
    """Remove torch's own keys, over whose stale addresses gloo itself would stumble, and nothing else."""
    if rank == 1:
        store.set(f"done {life}", "1")
        store.wait([f"clean {life}"])
        return
    store.wait([f"done {life}"])
    for key in store.list_keys():
        if "nemo_uecr" not in key and not key.startswith("clean"):
            store.delete_key(key)
    store.set(f"clean {life}", "1")


def lives(rank: int, size: int) -> list[Tensor]:
    """Groups that follow each other on one store, the second of which dies with its ranks out of step."""
    world = dist.group.WORLD.get_group_store()
    if rank == 0:
        hosted = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        world.set("port of the store", str(hosted.port))
    port = int(world.get("port of the store"))
    store = hosted if rank == 0 else dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    dist.barrier()
    dist.destroy_process_group()
    found = []
    for life in range(4):
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        time.sleep(0.3 * rank)  # rank 0 has long read whatever an earlier rank 1 left, if it reads that
        found.append(entropies(rank, 3 + life))
        if life == 1 and rank == 0:
            with contextlib.suppress(ScoreError):
                entropies(rank, 0)
        dist.barrier()
        if life < 3:
            dist.destroy_process_group()
            forget_torch(store, rank, str(life))
    return found


@pytest.mark.skipif(not hasattr(dist.TCPStore, "list_keys"), reason="needs a store that lists its keys")
def test_a_group_on_the_store_of_an_earlier_one_reads_nothing_of_it(on_ranks: OnRanks) -> None:
    for result in on_ranks(2, lives):
        assert result.error is None, result.message
        for life, found in enumerate(result.value):
            logits, target = peaked_logits(3 + life, 100, 9.0, seed=3 + life)
            exact = score_logits(logits, target, temperatures=(1.0,), entropy=True).entropy_N
            torch.testing.assert_close(found, exact, rtol=0, atol=2e-6)


def left_in_the_store(rank: int, size: int) -> list[str]:
    for _ in range(5):
        entropies(rank, 4)
    dist.barrier()
    store = dist.group.WORLD.get_group_store()
    return [key for key in store.list_keys() if "nemo_uecr" in key]


@pytest.mark.skipif(not hasattr(dist.TCPStore, "list_keys"), reason="needs a store that lists its keys")
def test_the_store_does_not_grow_with_the_calls(on_ranks: OnRanks) -> None:
    for result in on_ranks(2, left_in_the_store):
        assert result.error is None, result.message
        # Each of two ranks keeps its last two lines; nothing is left of how the group got its name.
        assert len(result.value) == 4, result.value
        assert all("/call/" in key for key in result.value)


def late_partner(rank: int, size: int) -> tuple[str, float, Tensor]:
    """Rank 0 gives up after a second; rank 1 comes later, with a correct call."""
    entropies(rank, 3)
    store = dist.group.WORLD.get_group_store()
    if rank == 0:
        store.set_timeout(timedelta(seconds=1))
    else:
        store.wait(["given up"])
    started, said = time.monotonic(), ""
    try:
        entropies(rank, 4)
    except ScoreError as error:
        said = str(error)
    took = time.monotonic() - started
    store.set_timeout(TIMEOUT)
    if rank == 0:
        store.set("given up", "1")
    return said, took, entropies(rank, 5)


def test_who_comes_too_late_is_told_so_and_the_next_call_is_in_step(on_ranks: OnRanks) -> None:
    results = on_ranks(2, late_partner)
    assert [result.error for result in results] == [None, None], results[0].message + results[1].message
    assert "not every rank" in results[0].value[0]
    assert "waited in vain" in results[1].value[0]
    assert results[1].value[1] < GLOO_TIMEOUT_S / 2, "the late rank went to a collective that nobody joins"
    assert torch.equal(results[0].value[2], results[1].value[2])


def dies_after_the_agreement(rank: int, size: int) -> str:
    """Rank 1 ends where its collective would begin."""
    if rank == 1:
        shards._exchange = lambda *_: os._exit(DIES_ON_PURPOSE)
    try:
        entropies(rank, 6)
    except ScoreError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_partner_that_dies_after_the_agreement_is_a_named_error(on_ranks: OnRanks) -> None:
    lasting, dead = on_ranks(2, dies_after_the_agreement)
    assert dead.error == "died"
    assert lasting.error is None, lasting.message
    assert lasting.value.startswith("ShardMismatchError: the collective of the group of 2 failed"), lasting.value


def test_the_digest_of_targets_sees_their_order() -> None:
    targets = torch.arange(40_000)
    swapped = targets.clone()
    swapped[[18_000, 22_000]] = swapped[[22_000, 18_000]]
    assert target_digest(targets) == target_digest(targets.int())
    assert target_digest(targets) != target_digest(swapped)
    assert target_digest(targets) != target_digest(targets[:-1])
