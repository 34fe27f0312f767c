"""How a run is asked to end early: by a signal before a time limit, or by the job that runs it.

A run that is asked finishes the step under way, saves a checkpoint and raises `RunStopped`; the command line then
exits with `STOPPED`. Whoever started it reads from that code that the same command continues the run.
A command that can only be killed, and continues from disk, calls `note_progress` to say that it advances.
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

#: Exit code of a run that saved and ended because it was asked to (EX_TEMPFAIL of sysexits.h: try again).
STOPPED = 75
#: Environment variable with the time, in seconds since 1970, at which the job that runs us will be ended.
JOB_END = "UECR_JOB_END"
#: Environment variable with the file that tells the job whether an attempt of a command advanced.
JOB_PROGRESS = "UECR_JOB_PROGRESS"
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class RunStopped(Exception):
    """The run ended early because it was asked to; the message says what was saved."""


class StopRequest:
    """Whether a run has been asked to end. May be asked from a signal handler or from another thread."""

    def __init__(self) -> None:
        #: Who asked first; empty if nobody did. No lock: a handler that interrupts another would wait for itself.
        self.reason = ""

    @property
    def asked(self) -> bool:
        """Whether the run should end after the step that is under way."""
        return self.reason != ""

    def ask(self, reason: str) -> None:
        """Ask; only the first reason is kept."""
        self.reason = self.reason or reason


@contextlib.contextmanager
def listening() -> Iterator[StopRequest]:
    """A request that SIGUSR1 or SIGTERM makes; outside the main thread no signal can be caught, so nothing makes it."""
    stop = StopRequest()

    def handler(number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if not stop.asked:  # logging would wait for a lock that the interrupted code may hold
            os.write(2, f"{name}: ending after the step under way\n".encode())
        stop.ask(name)

    with handling(SIGNALS, handler):
        yield stop


@contextlib.contextmanager
def interrupt_waits() -> Iterator[None]:
    """Ctrl-C takes effect when the block ends: torch and pydantic lose one that falls into their callbacks."""
    heard: list[int] = []
    with handling((signal.SIGINT,), lambda number, frame: heard.append(number)):
        yield
    if heard:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def handling(numbers: Sequence[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Give the signals this handler for the block; outside the main thread, where Python cannot, change nothing."""
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
    """Seconds until the job ends, from `UECR_JOB_END`; None where no job limits the run."""
    end = os.environ.get(JOB_END)
    return float(end) - time.time() if end else None


def note_progress() -> None:
    """Tell the job that runs us that something is saved which its next attempt need not do again."""
    file = os.environ.get(JOB_PROGRESS)
    if file:
        with contextlib.suppress(OSError):  # what was saved is saved, whether the job hears of it or not
            Path(file).touch()
