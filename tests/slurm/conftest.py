"""One Slurm for all tests of this folder, and a lock, because two Rays with the same ports cannot share a host."""

from __future__ import annotations

import fcntl
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.one_host import OneHostSlurm, missing

HERE = Path(__file__).parent
LOCK = Path("/tmp/ray.lock")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in Path(item.path).parents and "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real)
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneHostSlurm]:
    """The running cluster."""
    reason = missing()
    if reason is None and importlib.util.find_spec("ray") is None:
        reason = "ray is not installed; make test-slurm installs it"
    if reason is not None:
        pytest.skip(reason)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = OneHostSlurm(tmp_path_factory.mktemp("slurm"))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def our_processes() -> list[str]:
    """Command lines of this project and of its Ray clusters that run now."""
    done = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
    ours = ("uecr-ray-", "nemo_uecr slurm ", "nemo_uecr.slurm.")
    return [line for line in done.stdout.splitlines() if any(name in line for name in ours)]


@pytest.fixture
def nothing_left(slurm: OneHostSlurm) -> Iterator[None]:
    """Fail if a test leaves something running; a job that it did not bring to its end is cancelled first."""
    before = set(our_processes())
    yield
    slurm.call("scancel", "--user=root")
    deadline = time.monotonic() + 40
    while (left := set(our_processes()) - before) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not left


@pytest.fixture(scope="session")
def environment_folder() -> Path:
    """The virtual environment of this interpreter, as --venv takes it."""
    return Path(sys.prefix)
