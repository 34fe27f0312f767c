"""One Slurm for all tests of this folder, and a lock, because two Rays with the same ports cannot share a host."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from tests.local.tiny import Assets, assets
from tests.slurm.one_host import OneHostSlurm, missing

OURS = ("uecr-ray-", "nemo_uecr slurm ", "nemo_uecr.slurm.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.path).parents and "slurm" in getattr(item, "fixturenames", ()):
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
    with FileLock("/tmp/ray.lock"):
        cluster = OneHostSlurm(tmp_path_factory.mktemp("slurm"))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def processes(*parts: str) -> dict[int, str]:
    """Command lines of the processes that contain every part, by their numbers."""
    found = {one.pid: " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])}
    return {number: line for number, line in found.items() if all(part in line for part in parts)}


def our_processes() -> set[int]:
    """This project's and its Ray clusters' that run now."""
    return {number for part in OURS for number in processes(part)}


@pytest.fixture
def nothing_left(slurm: OneHostSlurm) -> Iterator[None]:
    """Fail if a test leaves something running; a job that it did not bring to its end is cancelled first."""
    before = our_processes()
    yield
    slurm.call("scancel", "--user=root")
    deadline = time.monotonic() + 40
    while our_processes() - before and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not our_processes() - before


@pytest.fixture(scope="session")
def tiny() -> Assets:
    return assets()


@pytest.fixture(scope="session")
def environment_folder() -> Path:
    """The virtual environment of this interpreter, as --venv takes it."""
    return Path(sys.prefix)
