"""A Ray of two processors in this process, for tests that call real actors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

#: Ray starts its workers with a niceness of 15: on a busy machine one that imports vLLM then takes many minutes.
SYSTEM_CONFIG = {"worker_niceness": 0}


@contextlib.contextmanager
def local_ray(variables: Mapping[str, str], **settings: float) -> Iterator[None]:
    """Ray inside the block, unless one is already there.

    Args:
        variables: of the environment of its workers.
        settings: of Ray itself.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    # Ray itself may have come through PYTHONPATH; its workers look for it there, too.
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
        _system_config=SYSTEM_CONFIG | settings,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables}},
    )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()
