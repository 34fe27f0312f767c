"""Worker processes: results come back, and whatever ends a study ends its workers and their children."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nemo_uecr.demo import workers
from nemo_uecr.demo.workers import work_on
from nemo_uecr.errors import RunFolderError
from nemo_uecr.stopping import RunStopped, StopRequest
from tests.demo.jobs import die_at_two, double, hang_deaf, save_when_asked

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pids(folder: Path) -> list[int]:
    """Of the jobs that hang and of their children."""
    return [int(word) for path in folder.glob("*.pids") for word in path.stem.split()]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with two workers that hang, as the study command has them."""
    command = [sys.executable, "-m", "tests.demo.jobs", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=-1, text=True)
    yield process
    process.kill()
    for left in pids(tmp_path):
        with contextlib.suppress(ProcessLookupError):  # what outlives it holds its output open, too
            os.kill(left, signal.SIGKILL)
    process.communicate()


def test_every_item_is_worked_on_once() -> None:
    assert dict(work_on(double, [1, 2, 3], processes=2, stop=StopRequest())) == {1: 2, 2: 4, 3: 6}
    assert not list(work_on(double, [], processes=2, stop=StopRequest()))
    with pytest.raises(RunFolderError, match="killed"):
        list(work_on(die_at_two, [1, 2, 3], processes=1, stop=StopRequest()))


def stopped(work: Callable[[Path], None], folder: Path, begun: str) -> None:
    """Work on five items, two at once, asked to stop once two have begun."""
    stop = StopRequest()

    def ask() -> None:
        wait_until(lambda: len([*folder.glob(begun)]) == 2)
        stop.ask("a test")

    threading.Thread(target=ask).start()
    with pytest.raises(RunStopped, match="a test"):
        list(work_on(work, [folder] * 5, processes=2, stop=stop))
    assert len([*folder.glob(begun)]) == 2  # the third never began


def test_a_request_ends_deaf_workers_and_their_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE_SECONDS", 0.5)
    stopped(hang_deaf, tmp_path, "*.pids")
    wait_until(lambda: not any(map(alive, pids(tmp_path))))


def test_a_request_lets_workers_save_and_begins_nothing_more(tmp_path: Path) -> None:
    stopped(save_when_asked, tmp_path, "*.begun")
    assert len([*tmp_path.glob("*.saved")]) == 2


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, "stopped by SIGTERM"), (signal.SIGKILL, "")])
def test_a_signal_to_the_study_alone_ends_all(
    jobs: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, said: str
) -> None:
    wait_until(lambda: len(pids(tmp_path)) == 4)
    found = pids(tmp_path)
    assert all(map(alive, found))
    jobs.send_signal(number)
    assert said in jobs.communicate(timeout=PATIENCE)[1]
    wait_until(lambda: not any(map(alive, found)))
