"""A Ray in this process, for tests that call real actors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def local_ray(
    variables: Mapping[str, str], *, num_cpus: int = 2, num_gpus: int = 0, **settings: float
) -> Iterator[None]:
    """Ray inside the block, with variables of its workers' environment and settings of Ray itself."""
    import ray

    # Ray itself may have come through PYTHONPATH; its workers look for it there, too.
    root, paths = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")
    if root not in paths.split(os.pathsep):
        paths = os.pathsep.join([root, paths])
    _start(
        num_cpus=num_cpus, num_gpus=num_gpus, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
        # It starts its workers with a niceness of 15: on a busy machine one that imports vLLM then takes many minutes.
        _system_config={"worker_niceness": 0, **settings},
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables}},
    )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()


def _start(**given: Any) -> None:
    """Start Ray, which gives its own processes 15 s to be there: on a busy machine not always enough."""
    import ray

    for left in (2, 1, 0):
        try:
            ray.init(**given)
        except Exception:
            ray.shutdown()
            if not left:
                raise
        else:
            return
