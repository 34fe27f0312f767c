"""Work for the worker processes of the tests; light, because every process imports it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nemo_uecr.demo.workers import work_on
from nemo_uecr.stopping import listening


def double(number: int) -> int:
    return 2 * number


def die_at_two(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def hang(folder: Path) -> None:
    """Leave a file named by the process ids of this worker and of a child of it, and hang."""
    child = subprocess.Popen(["sleep", "600"])
    (folder / f"{os.getpid()} {child.pid}.pids").touch()
    child.wait()


def hang_deaf(folder: Path) -> None:
    """The same, deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(folder)


def save_when_asked(folder: Path) -> None:
    """Begin, and leave a file when somebody asks to end, as a run saves its step and ends."""
    with listening() as stop:
        (folder / f"{time.monotonic_ns()}.begun").touch()
        while not stop.asked:
            time.sleep(0.02)
    (folder / f"{os.getpid()}.saved").touch()


if __name__ == "__main__":  # a study of five such jobs, two at once
    with listening() as asked:
        list(work_on(hang, [Path(sys.argv[1])] * 5, processes=2, stop=asked))
