"""Early stops of a run: by a signal before a time limit, or by the job that runs it.

When asked to stop, a run finishes its current step, saves a checkpoint and raises `RunStopped`; the command line then
exits with `STOPPED`, which means that the same command continues the run. A command that can only be killed, and
continues from disk, calls `note_progress` to report that it advances.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

#: Exit code of a run that saved and stopped on request (EX_TEMPFAIL of sysexits.h: try again).
STOPPED = 75
#: Environment variable with the end of the job's time limit, in seconds since 1970.
JOB_END = "UECR_JOB_END"
#: Environment variable with the file that a command touches when it has advanced.
JOB_PROGRESS = "UECR_JOB_PROGRESS"
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class RunStopped(Exception):
    """The run stopped on request; the message names what was saved."""


class StopRequest:
    """Whether a run should stop; settable from a signal handler or another thread."""

    def __init__(self) -> None:
        #: The first reason; empty if there is none. No lock: a handler that interrupts another would deadlock.
        self.reason = ""
        self._acts: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        return self.reason != ""

    def ask(self, reason: str) -> None:
        """Ask to stop; only the first reason is kept."""
        self.reason = self.reason or reason
        for act in self._acts:
            act()

    def then(self, act: Callable[[], None]) -> None:
        """Do ``act`` when a stop is asked, perhaps in a signal handler; at once if it was asked before."""
        self._acts.append(act)
        if self.asked:
            act()


@contextlib.contextmanager
def listening() -> Iterator[StopRequest]:
    """A stop request set by SIGUSR1 or SIGTERM; outside the main thread, which alone gets signals, it is never set."""
    stop = StopRequest()

    def handler(number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if not stop.asked:  # logging might deadlock on a lock of the interrupted code
            os.write(2, f"{name}: stopping after the current step\n".encode())
        stop.ask(name)

    with handling(SIGNALS, handler):
        yield stop


@contextlib.contextmanager
def interrupt_waits() -> Iterator[None]:
    """Delay Ctrl-C until the block ends: torch and pydantic lose one that arrives in their callbacks."""
    heard: list[int] = []
    with handling((signal.SIGINT,), lambda number, frame: heard.append(number)):
        yield
    if heard:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def handling(numbers: Sequence[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Set a signal handler for the block; outside the main thread, where Python cannot, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            # None: the handler was not set from Python and cannot be put back.
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


def seconds_left() -> float | None:
    """Seconds until the job's time limit, from `UECR_JOB_END`; None without a job."""
    end = os.environ.get(JOB_END)
    return float(end) - time.time() if end else None


def note_progress() -> None:
    """Report progress to the job: something is saved that its next attempt need not repeat."""
    file = os.environ.get(JOB_PROGRESS)
    if file:
        with contextlib.suppress(OSError):  # failing to report must not end the command
            Path(file).touch()
