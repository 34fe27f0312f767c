"""NeMo-RL's source tree on the import path, or a skip that says how to name one."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nemo.local_ray import local_ray
from tests.nemo.source import MISSING, SOURCE

ON_PYTHON_311 = str(Path(__file__).parent / "on_python_311")


@functools.cache
def forked_workers() -> str:
    """The value of `FORKED_WORKERS` for Rays of this process's tests."""
    folder = tempfile.mkdtemp(prefix="forks-")
    atexit.register(shutil.rmtree, folder)
    return f"{os.getpid()}:{folder}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    skip = pytest.mark.skip(reason=MISSING)
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.nemo)
            if SOURCE is None:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def nemo_rl() -> str:
    """The checked version of NeMo-RL, importable."""
    if SOURCE not in sys.path:
        sys.path.insert(0, SOURCE)
    from nemo_uecr.nemo import upstream
    from tests.nemo.inside.on_python_311 import sitecustomize  # noqa: F401 - in this process; Ray's find it on their path

    return upstream.check()


@pytest.fixture(scope="session")
def ray_cluster(nemo_rl: str) -> Iterator[None]:
    """A local Ray that is told it has six CPUs and three GPUs, so that clusters find their places."""
    import ray

    paths = os.pathsep.join([SOURCE or "", ON_PYTHON_311, os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # NeMo-RL hands this process's variables to its environments, over those of the runtime environment.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), paths]))
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("FORKED_WORKERS", forked_workers())
        with local_ray({}, num_cpus=6, num_gpus=3):
            # Another Ray may run on this machine; parts of NeMo-RL look for "the" cluster.
            patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
            yield
