"""Calls to real Ray actors: a dead, silent or failing worker is named."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nemo_uecr.nemo.native_calls import check_called, check_replaced, native_calls
from nemo_uecr.nemo.upstream import WorkerError, call_all, wait
from nemo_uecr.slurm.replicas import ReplicaError, outcome_of
from tests.nemo.local_ray import local_ray

pytestmark = pytest.mark.real
ray = pytest.importorskip("ray")
NAMES = ["teacher-0-0", "teacher-0-1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with local_ray({}):
        yield


def make_actors(count: int) -> list[Any]:
    @ray.remote(num_cpus=0)
    class Worker:
        def __init__(self, rank: int) -> None:
            self.rank = rank

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
    """What NeMo-RL's worker group offers, over our actors."""

    def __init__(self, actors: list[Any]) -> None:
        self.actors = actors
        self.worker_metadata = [{"name": f"teacher-0-{rank}"} for rank in range(len(actors))]

    def run_all_workers_single_data(self, method: str, **arguments: Any) -> list[Any]:
        return [getattr(actor, method).remote(**arguments) for actor in self.actors]


def test_a_worker_that_ray_ends_for_memory_is_named() -> None:
    """A Ray that finds its node too full at once; before the others, which share one that does not."""
    with local_ray({}, memory_usage_threshold=0.0001, memory_monitor_refresh_ms=100):
        (actor,) = make_actors(1)
        future = actor.hang.remote(60)
        reason = r"died \(OutOfMemoryError: .*low on memory.*; the usual cause is memory$"
        with pytest.raises(WorkerError, match=rf"^score_tokens: worker teacher-0-0 {reason}") as error:
            wait("score_tokens", [future], NAMES[:1], seconds=60)
        with pytest.raises(ReplicaError, match=r"^node n1: its replica has died: .*low on memory") as dead:
            outcome_of(future, "n1")
        assert max(len(str(error.value)), len(str(dead.value))) < 500


@pytest.mark.usefixtures("cluster")
def test_all_workers_answer_and_a_replica_s_error_is_named() -> None:
    """Its answer is not needed; its failure is."""
    first, second = actors = make_actors(2)
    assert call_all(SimpleNamespace(worker_group=Group(actors)), "answer", seconds=60) == [0, 1]
    with pytest.raises(WorkerError, match=r"worker teacher-0-1 raised ValueError: no such layer$"):
        wait("x", [first.answer.remote(), second.refuse.remote()], NAMES, seconds=60)


@pytest.mark.usefixtures("cluster")
def test_a_dead_worker_is_named() -> None:
    """The other one waits for it, as in a collective, and is not named although it comes first."""
    first, second = make_actors(2)
    with pytest.raises(WorkerError, match=r"score_tokens: worker teacher-0-1 died \(ActorDied.* Look at its log"):
        wait("score_tokens", [first.hang.remote(50), second.die.remote()], NAMES, seconds=60)
    ray.kill(first)


@pytest.mark.usefixtures("cluster")
def test_a_worker_whose_constructor_raises_reports_its_error() -> None:
    """To Ray it died; the usual cause of that is another."""

    @ray.remote(num_cpus=0)
    class Refusing:
        def __init__(self) -> None:
            raise ValueError("no such layer\nexpected another")

        def answer(self) -> None: ...

    future = Refusing.remote().answer.remote()
    with pytest.raises(WorkerError, match=r"^x: worker teacher-0-0 could not be made: ValueError: no such layer$"):
        wait("x", [future], NAMES[:1], seconds=60)


def test_what_ray_adds_to_the_methods_of_an_actor_s_parents_is_no_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo-RL's module makes an actor of its worker's class when it is imported."""

    class MegatronPolicyWorkerImpl:
        def move_model(self, model: Any, device: str, move_params: bool = True, move_grads: bool = True) -> Any: ...

    ray.remote(type("MegatronPolicyWorker", (MegatronPolicyWorkerImpl,), {}))
    assert "_ray_trace_ctx" in str(inspect.signature(MegatronPolicyWorkerImpl.move_model))
    module = ModuleType("nemo_rl.models.policy.workers.megatron_policy_worker")
    module.MegatronPolicyWorkerImpl = MegatronPolicyWorkerImpl  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    worker = native_calls("worker")
    for row in (row for row in worker.called if row.module == module.__name__):
        check_called(row, "0.7.0")
    (pair,) = [row for row in worker.replaced if row.module == module.__name__]
    check_replaced(pair, "0.7.0")


@pytest.mark.usefixtures("cluster")
def test_a_silent_worker_is_named_in_time() -> None:
    first, second = make_actors(2)
    ray.get([first.answer.remote(), second.answer.remote()])
    started = time.monotonic()
    with pytest.raises(WorkerError, match=r"no answer within 3 s from teacher-0-1;"):
        wait("score_tokens", [first.answer.remote(), second.hang.remote(60)], NAMES, seconds=3)
    assert time.monotonic() - started < 20
    ray.kill(second)
