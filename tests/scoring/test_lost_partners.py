"""Ranks that come late to a group's first call, stores that end, groups that are destroyed: named, never mixed up."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nemo_uecr.errors import ScoreError
from nemo_uecr.scoring import shards
from nemo_uecr.scoring.dense import score_logits
from nemo_uecr.scoring.vocab_parallel import score_vocab_parallel

from .conftest import DIES_ON_PURPOSE, GLOO_TIMEOUT_S, peaked_logits

OnRanks = Callable[..., list[Any]]
TIMEOUT = timedelta(seconds=GLOO_TIMEOUT_S)
COLUMNS = 50


def call(rank: int, size: int, number: int, group: dist.ProcessGroup | None) -> str:
    """A correct call, the same targets with other logits for each number; "right", or the error it ended in."""
    logits, _ = peaked_logits(6, COLUMNS * size, 9.0, seed=number)
    target = torch.arange(6)
    first = COLUMNS * rank
    shard = logits[:, first : first + COLUMNS]
    try:
        scores = score_vocab_parallel(
            shard, target, first_column=first, group=group, temperatures=(1.0,), entropy=False
        )
    except ScoreError as error:
        return f"{type(error).__name__}: {error}"
    expected = score_logits(logits, target, temperatures=(1.0,), entropy=False)
    return "right" if (scores.logp_KN - expected.logp_KN).abs().max() < 3e-6 else "the logits of another call"


def late_to_the_first_call(rank: int, size: int, late: int) -> list[str]:
    """All but one rank give up before the group has a name; that one comes when they have, with its first call."""
    store = dist.group.WORLD.get_group_store()
    given_up = [f"given up {other}" for other in range(size) if other != late]
    if rank == late:
        store.wait(given_up)
        said = [call(rank, size, 0, None)]
    else:
        store.set_timeout(timedelta(seconds=1))
        said = [call(rank, size, 0, None)]
        store.set_timeout(TIMEOUT)
        store.set(f"given up {rank}", "1")
    return said + [call(rank, size, number, None) for number in range(1, 4)]


@pytest.mark.parametrize(("size", "late"), [(2, 0), (2, 1), (3, 2)])
def test_who_comes_late_to_a_groups_first_call_never_meets_the_next_one(
    on_ranks: OnRanks, size: int, late: int
) -> None:
    for rank, result in enumerate(on_ranks(size, late_to_the_first_call, late)):
        assert result.error is None, result.message
        assert result.value[0].startswith("ShardMismatchError"), result.value
        assert ("waited in vain" if rank == late else "not every rank") in result.value[0]
        assert result.value[1:] == ["right"] * 3, result.value


def host(pipe: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    time.sleep(10 * GLOO_TIMEOUT_S)


def the_host_of_the_store_dies(rank: int, size: int) -> list[str]:
    world = dist.group.WORLD.get_group_store()
    hosting = None
    if rank == 0:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        hosting = context.Process(target=host, args=(theirs,))
        hosting.start()
        world.set("port", str(ours.recv()))
    store = dist.TCPStore("127.0.0.1", int(world.get("port")), is_master=False, timeout=TIMEOUT)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    said = [call(rank, size, 0, None)]
    dist.barrier()
    if hosting is not None:
        hosting.kill()
        hosting.join()
    dist.barrier()
    return [*said, call(rank, size, 1, None)]


def test_a_store_whose_host_has_died_is_a_named_error(on_ranks: OnRanks) -> None:
    for result in on_ranks(2, the_host_of_the_store_dies):
        assert result.error is None, result.message
        assert result.value[0] == "right"
        assert result.value[1].startswith("ShardMismatchError: the store of the group of 2 was lost"), result.value
        assert "\n" not in result.value[1]


def dies_after_the_agreement(rank: int, size: int, tokens: int) -> str:
    """Rank 1 ends where its collective would begin."""
    target = torch.arange(tokens) % 10
    shard = torch.zeros(tokens, 5)
    if rank == 1:
        shards._exchange = lambda *_: os._exit(DIES_ON_PURPOSE)
    try:
        score_vocab_parallel(
            shard, target, first_column=5 * rank, group=None, temperatures=(1.0,), entropy=True, top1=False
        )
    except ScoreError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.parametrize("tokens", [6, 40_000])  # an all-gather, an all-reduce
def test_a_partner_that_dies_after_the_agreement_is_a_named_error(on_ranks: OnRanks, tokens: int) -> None:
    lasting, dead = on_ranks(2, dies_after_the_agreement, tokens)
    assert dead.error == "died"
    assert lasting.error is None, lasting.message
    assert lasting.value.startswith("ShardMismatchError: the collective of the group of 2 failed"), lasting.value
    assert "onnection" in lasting.value, lasting.value
    assert "\n" not in lasting.value


def destroyed_group(rank: int, size: int) -> list[str]:
    group = dist.new_group(list(range(size)))
    said = [call(rank, size, 0, group)]
    dist.destroy_process_group(group)
    return [*said, call(rank, size, 1, group), call(rank, size, 2, None)]


def test_a_destroyed_group_is_refused_by_name(on_ranks: OnRanks) -> None:
    for result in on_ranks(2, destroyed_group):
        assert result.error is None, result.message
        assert result.value[0] == result.value[2] == "right"
        assert result.value[1].startswith("ScoringInputError: the group has been destroyed")
