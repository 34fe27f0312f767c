"""Where worker groups come to stand: NeMo-RL's real cluster over Ray, which is told that it has three GPUs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.nemo import recipe, rules, upstream
from nemo_uecr.stopping import StopRequest
from tests.nemo.made_recipe import made
from tests.nemo.source import SOURCE

pytestmark = pytest.mark.usefixtures("ray_cluster")


@contextmanager
def policy_cluster(cluster: dict[str, int], more: int) -> Iterator[Any]:
    """The student's cluster as NeMo-RL's set-up makes it, which asks for two worker groups, with ``more`` of them."""
    with upstream.substitutions(estimator=object, more_worker_groups=more, stop=StopRequest(), timeouts=[]):
        found = importlib.import_module("nemo_rl.algorithms.grpo").RayVirtualCluster(
            bundle_ct_per_node_list=[cluster["gpus_per_node"]] * cluster["num_nodes"],
            use_gpus=True,
            max_colocated_worker_groups=2,
            num_gpus_per_node=cluster["gpus_per_node"],
            name=upstream.STUDENT_CLUSTERS[0],
        )
    try:
        yield found
    finally:
        found.shutdown()


@contextmanager
def gpus_of(*places: tuple[Any, int], seconds: float) -> Iterator[list[list[int]] | None]:
    """The GPUs of groups of one worker on each GPU of a cluster, taking 1 / share of it; None if one finds no place."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    @ray.remote(num_cpus=0.01)
    class Worker:
        def gpus(self) -> int:
            return int(ray.get_gpu_ids()[0])

    def group_on(cluster: Any, share: int) -> list[Any]:
        at = [(group, place) for group in cluster.get_placement_groups() for place in range(group.bundle_count)]
        strategies = [PlacementGroupSchedulingStrategy(group, place) for group, place in at]
        return [Worker.options(num_gpus=1 / share, scheduling_strategy=each).remote() for each in strategies]

    groups = [group_on(cluster, share) for cluster, share in places]
    futures = [[worker.gpus.remote() for worker in group] for group in groups]
    every = [future for group in futures for future in group]
    ready, _ = ray.wait(every, num_returns=len(every), timeout=seconds)
    yield [ray.get(group) for group in futures] if len(ready) == len(every) else None
    for group in groups:
        for worker in group:
            ray.kill(worker)


def test_a_dedicated_teacher_has_a_gpu_of_its_own() -> None:
    """Two and one of three, as the paper's seven and one of eight."""
    given = made(cluster={"gpus_per_node": 3, "num_nodes": 1}, uecr__teacher__dedicated_gpus=1)
    section = recipe.section_of(given)
    own_gpus = recipe.teacher_gpus(given, section)
    rules.apply(given, rules.adjusted(given, section))
    with policy_cluster(given["cluster"], 0) as cluster:
        own = upstream.teacher_cluster(own_gpus)
        with gpus_of((cluster, 2), (cluster, 2), (own, 1), seconds=120) as gpus:
            assert gpus is not None
            engine, student, teacher = map(sorted, gpus)
            assert engine == student
            assert len({*student, *teacher}) == 3
        own.shutdown()


BINDS = """
import os, runpy, sys
bind = runpy.run_path(sys.argv[1])["bind_to_gpu_numa"]
print(bind(1), bind(0), sorted(os.sched_getaffinity(0)))
"""


def test_a_worker_binds_itself_to_the_cpus_that_its_node_lists(tmp_path: Path) -> None:
    """The file of `slurm/step.sh`, read by NeMo-RL's own function: GPU 0 has a line, GPU 1 has none."""
    first = min(os.sched_getaffinity(0))
    (tmp_path / "gpu-cpus").write_text(f"0:{first}\n")
    environment = {"NRL_GPU_CPU_AFFINITY_FILE": str(tmp_path / "gpu-cpus"), "NRL_DISABLE_NUMA_MEMBIND": "1"}
    source = f"{SOURCE}/nemo_rl/distributed/numa_utils.py"
    words = [sys.executable, "-c", BINDS, source]
    done = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"False True [{first}]\n"
