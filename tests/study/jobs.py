"""Work for the worker processes of the tests; light, because every process imports it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from nemo_uecr.stopping import listening
from nemo_uecr.study.workers import work_on

LONG = 600.0


def double(number: int) -> int:
    return 2 * number


def die_at_two(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def hang(folder: Path) -> None:
    """Write the process ids of this worker and of a child of it, and hang."""
    child = subprocess.Popen(["sleep", str(LONG)])
    aside = folder / f".{os.getpid()}"
    aside.write_text(f"{os.getpid()} {child.pid}")
    aside.rename(folder / f"{os.getpid()}.pids")
    time.sleep(LONG)


def hang_deaf(folder: Path) -> None:
    """The same, deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(folder)


def save_when_asked(folder: Path) -> None:
    """Begin, and leave a file when somebody asks to end, as a run saves its step and ends."""
    with listening() as stop:
        (folder / f"{time.monotonic_ns()}.begun").touch()
        deadline = time.monotonic() + LONG
        while not stop.asked and time.monotonic() < deadline:
            time.sleep(0.02)
    time.sleep(0.2)  # as a step takes
    (folder / f"{os.getpid()}.saved").touch()


def main() -> None:
    """A study of five such jobs, two at once."""
    # A shell starts what it puts into the background deaf to Ctrl-C, and its children with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with listening() as stop:
        folder = Path(sys.argv[1])
        work_on(hang, [folder] * 5, processes=2, stop=stop, report=lambda item, result: logging.info("%s", item))


if __name__ == "__main__":
    main()
