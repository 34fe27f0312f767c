"""Calls to real Ray actors: rows come back in order, and a dead or silent worker is named."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nemo_uecr.nemo.upstream import WorkerError, call_all, score_on_workers, wait
from tests.nemo_backend.local_ray import local_ray

pytestmark = pytest.mark.real
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_ray({}):
        yield


def make_actors(count: int) -> list[Any]:
    @ray.remote(num_cpus=0)
    class Worker:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def score_tokens(self, *, data: Any, request: Any) -> dict[str, Any]:
            return {"value": [row * 10 for row in data["value"]], "rank": [self.rank] * len(data["value"])}

        def die(self) -> None:
            os._exit(1)

        def hang(self, seconds: float) -> None:
            time.sleep(seconds)

        def refuse(self) -> None:
            raise ValueError("no such layer\nmore lines")

        def answer(self) -> int:
            return self.rank

    return [Worker.remote(rank) for rank in range(count)]


class Group:
    """What NeMo-RL's worker group offers, over two actors."""

    def __init__(self, actors: list[Any]) -> None:
        self.actors = actors
        self.worker_metadata = [{"name": f"teacher-0-{rank}"} for rank in range(len(actors))]

    def run_all_workers_sharded_data(self, method: str, *, data: Any, common_kwargs: Any, **axes: Any) -> Any:
        futures = [
            getattr(actor, method).remote(data=part, **common_kwargs)
            for actor, part in zip(self.actors, data, strict=True)
        ]
        return SimpleNamespace(futures=futures)

    def run_all_workers_single_data(self, method: str, **arguments: Any) -> list[Any]:
        return [getattr(actor, method).remote(**arguments) for actor in self.actors]


class Columns(dict):  # type: ignore[type-arg]
    """As much of NeMo-RL's batch as the dispatch uses."""

    @classmethod
    def from_batches(cls, parts: list[Any]) -> Columns:
        return cls({name: [value for part in parts for value in part[name]] for name in parts[0]})

    def reorder_data(self, order: list[int]) -> None:
        for name, values in self.items():
            self[name] = [value for _, value in sorted(zip(order, values, strict=True), key=lambda pair: pair[0])]


def test_rows_come_back_in_order() -> None:
    """Sharding moved the rows 0..3 to 2, 0, 3, 1; the answers return to where the rows came from."""
    shards, order = [{"value": [2, 0]}, {"value": [3, 1]}], [2, 0, 3, 1]
    policy = SimpleNamespace(worker_group=Group(make_actors(2)), _shard_for_logprob=lambda data: (shards, order))
    answer = score_on_workers(policy, Columns(), None, seconds=60)  # type: ignore[arg-type]
    assert answer["value"] == [0, 10, 20, 30]
    assert answer["rank"] == [0, 1, 0, 1]


def test_each_score_is_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two data-parallel ranks of two tensor ranks: two of four workers send their 80,000 bytes, once each."""

    @ray.remote(num_cpus=0)
    class Worker:
        def __init__(self, rank: int) -> None:
            self.first = rank % 2 == 0

        def score_tokens(self, *, data: Any, request: Any) -> Any:
            return data if self.first else None

    fetched: list[Any] = []
    get = ray.get

    def counting(future: Any) -> Any:
        fetched.append(get(future))
        return fetched[-1]

    shards = [{"value": torch.full((10_000,), row, dtype=torch.long)} for row in (0, 0, 1, 1)]
    group = Group([Worker.remote(rank) for rank in range(4)])
    policy = SimpleNamespace(worker_group=group, _shard_for_logprob=lambda data: (shards, None))
    monkeypatch.setattr(ray, "get", counting)
    answer = score_on_workers(policy, Columns(), None, seconds=60)  # type: ignore[arg-type]
    assert answer["value"][::10_000] == [0, 1]
    assert sum(part["value"].nbytes for part in fetched if part is not None) == 2 * 80_000


def test_a_replica_s_error_is_named() -> None:
    """Its answer is not needed; its failure is."""
    first, second = make_actors(2)
    with pytest.raises(WorkerError, match=r"worker teacher-0-1 raised ValueError: no such layer$"):
        wait("x", [first.answer.remote(), second.refuse.remote()], ["teacher-0-0", "teacher-0-1"], seconds=60)


def test_all_workers_answer() -> None:
    policy = SimpleNamespace(worker_group=Group(make_actors(2)))
    assert call_all(policy, "answer", seconds=60) == [0, 1]


def test_a_dead_worker_is_named() -> None:
    """The other one waits for it, as in a collective, and is not named although it comes first."""
    first, second = make_actors(2)
    futures = [first.hang.remote(50), second.die.remote()]
    with pytest.raises(WorkerError, match=r"score_tokens: worker teacher-0-1 died \(ActorDied.* Look at its log"):
        wait("score_tokens", futures, ["teacher-0-0", "teacher-0-1"], seconds=60)
    ray.kill(first)


def test_a_silent_worker_is_named_in_time() -> None:
    first, second = make_actors(2)
    ray.get([first.answer.remote(), second.answer.remote()])
    futures = [first.answer.remote(), second.hang.remote(60)]
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"no answer within 3 s from teacher-0-1;"):
        wait("score_tokens", futures, ["teacher-0-0", "teacher-0-1"], seconds=3)
    assert time.monotonic() - started < 20
    ray.kill(second)
