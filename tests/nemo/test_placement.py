"""Where worker groups come to stand: NeMo-RL's real cluster over Ray, which is told that it has three GPUs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.translate import master_config, teacher_gpus_of_nodes
from nemo_uecr.stopping import StopRequest
from tests.config.test_nemo import CONFIGS, GIVEN

pytestmark = pytest.mark.usefixtures("ray_cluster")


def configuration(*changes: str) -> Any:
    return load_nemo_config(CONFIGS / "uecr_qwen3_1p7b.yaml", [*GIVEN["1p7b"], *changes])


@contextmanager
def policy_cluster(config: Any, groups: int) -> Iterator[Any]:
    """The student's cluster as NeMo-RL's set-up makes it, which asks for two worker groups."""
    section = master_config(config)["cluster"]
    with upstream.substitutions(estimator=object, colocated_worker_groups=groups, evaluation=None, stop=StopRequest()):
        made = importlib.import_module("nemo_rl.algorithms.grpo").RayVirtualCluster(
            bundle_ct_per_node_list=[section["gpus_per_node"]] * section["num_nodes"],
            use_gpus=True,
            max_colocated_worker_groups=2,
            num_gpus_per_node=section["gpus_per_node"],
            name=upstream.POLICY_CLUSTER,
        )
    try:
        yield made
    finally:
        made.shutdown()


def group_on(cluster: Any, share: int) -> list[Any]:
    """One worker on each of the cluster's GPUs, taking 1 / share of it."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    @ray.remote
    class Worker:
        def gpus(self) -> list[int]:
            return [int(found) for found in ray.get_gpu_ids()]

    return [
        Worker.options(
            num_cpus=0.01,
            num_gpus=1 / share,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, place),
        ).remote()
        for group in cluster.get_placement_groups()
        for place in range(group.bundle_count)
    ]


def gpus_of(workers: list[Any], *, seconds: float) -> list[int] | None:
    """The GPU of each worker; None if one finds no place."""
    import ray

    futures = [worker.gpus.remote() for worker in workers]
    ready, _ = ray.wait(futures, num_returns=len(futures), timeout=seconds)
    return [gpu for found in ray.get(futures) for gpu in found] if len(ready) == len(futures) else None


def end(workers: list[Any]) -> None:
    import ray

    for worker in workers:
        ray.kill(worker)


def test_three_groups_share_each_gpu() -> None:
    """vLLM, teacher and student; NeMo-RL's two shares of a half would leave the third waiting for ever."""
    with policy_cluster(configuration("cluster.gpus_per_node=2"), 3) as cluster:
        workers = [worker for _ in range(3) for worker in group_on(cluster, cluster.max_colocated_worker_groups)]
        gpus = gpus_of(workers, seconds=120)
        assert gpus is not None
        assert sorted(map(gpus.count, set(gpus))) == [3, 3]
        end(workers)
    with policy_cluster(configuration("cluster.gpus_per_node=2"), 2) as cluster:
        workers = [worker for _ in range(3) for worker in group_on(cluster, cluster.max_colocated_worker_groups)]
        assert gpus_of(workers, seconds=5) is None
        end(workers)


def test_a_dedicated_teacher_has_a_gpu_of_its_own() -> None:
    """Two and one of three, as the paper's seven and one of eight."""
    config = configuration("cluster.gpus_per_node=3", "teacher.dedicated_gpus=1")
    with policy_cluster(config, 2) as cluster:
        own = upstream.teacher_cluster(teacher_gpus_of_nodes(config))
        students, teachers = [*group_on(cluster, 2), *group_on(cluster, 2)], group_on(own, 1)
        at, alone = gpus_of(students, seconds=120), gpus_of(teachers, seconds=120)
        assert at is not None
        assert alone is not None
        assert sorted(map(at.count, set(at))) == [2, 2]
        assert len(alone) == 1
        assert not set(at) & set(alone)
        end([*students, *teachers])
        own.shutdown()
