"""A worker that Ray ends because the node runs out of memory is named like any other one that dies."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from nemo_uecr.nemo.upstream import WorkerError, wait
from nemo_uecr.slurm.replicas import ReplicaError, outcome_of
from tests.nemo_backend.local_ray import local_ray

pytestmark = pytest.mark.real
ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def crowded() -> Iterator[None]:
    """A Ray that finds its node too full at once."""
    with local_ray({}, memory_usage_threshold=0.0001, memory_monitor_refresh_ms=100):
        yield


@ray.remote(num_cpus=0, max_concurrency=2)
class Worker:
    def hang(self, seconds: float) -> None:
        time.sleep(seconds)


def test_a_worker_that_ray_ends_for_memory_is_named() -> None:
    future = Worker.remote().hang.remote(60)
    reason = r"died \(OutOfMemoryError: .*low on memory.*; the usual cause is memory$"
    with pytest.raises(WorkerError, match=rf"^score_tokens: worker teacher-0-0 {reason}") as error:
        wait("score_tokens", [future], ["teacher-0-0"], seconds=60)
    assert len(str(error.value)) < 500
    with pytest.raises(ReplicaError, match=r"^node n1: its replica has died: .*low on memory") as dead:
        outcome_of(future, "n1")
    assert len(str(dead.value)) < 500
