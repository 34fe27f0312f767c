"""Comparison in processes of their own, so that the time limit really stops it.

A comparison can hang inside one big-integer operation, where neither a signal nor a thread ends it: the process is
killed and another takes its place.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from nemo_uecr.errors import DependencyError, UecrError
from nemo_uecr.verifier.verdict import Verdict

#: Seconds one comparison may take.
TIME_LIMIT = 5.0
#: Seconds a process may take to load its libraries, on a machine with other work.
START_LIMIT = 300.0
#: How often a start is tried for one comparison.
START_TRIES = 2
#: Failed starts in a row after which it is no accident of one process.
START_FAILURES = 6


class ComparisonProcess:
    """One process that compares; started when first needed, replaced when it had to be killed."""

    def __init__(self, time_limit: float) -> None:
        """Remember the limit, in seconds a comparison."""
        self._time_limit = time_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._failed_starts = 0

    def compare(self, given: str, expected: str) -> Verdict:
        """The verdict, `timeout` when the limit passed, `error` when the process died of the comparison.

        Raises:
            DependencyError: If math-verify is not installed.
            UecrError: If the process does not start, time after time.
        """
        process = self._running()
        if process is None:
            return Verdict.ERROR
        try:
            _write_line(process, json.dumps([given, expected]).encode() + b"\n")
        except BrokenPipeError:
            self.close()
            return Verdict.ERROR
        line = _read_line(process, self._time_limit)
        if not line:
            self.close()
            return Verdict.TIMEOUT if line is None else Verdict.ERROR
        return Verdict(line.decode().strip())

    def close(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _running(self) -> subprocess.Popen[bytes] | None:
        """The process, started where there is none; None when it ended while it was starting, and once more."""
        if find_spec("math_verify") is None:
            raise DependencyError("comparing answers needs math-verify; pip install 'nemo-uecr[verify]'")
        # After a fork the pipes are shared with the parent process; each needs a process of its own.
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return self._process
            self.close()  # ended between two comparisons; no fault of the next one
        for _ in range(START_TRIES):
            process = self._start()
            if _read_line(process, START_LIMIT):
                self._failed_starts = 0
                return process
            self.close()
            self._failed_starts += 1
            if self._failed_starts >= START_FAILURES:
                raise UecrError(
                    f"the comparison process did not start, {self._failed_starts} times in a row; "
                    "run: python -m nemo_uecr.verifier.worker"
                )
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nemo_uecr.verifier.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._owner = os.getpid()
        return self._process


class ComparisonPool:
    """Several comparison processes for many pairs."""

    def __init__(self, *, workers: int, time_limit: float = TIME_LIMIT) -> None:
        """Processes start when the first pair needs them."""
        self._processes = [ComparisonProcess(time_limit) for _ in range(workers)]

    def compare_all(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """The verdicts of (given, expected) pairs, in their order."""
        free: queue.SimpleQueue[ComparisonProcess] = queue.SimpleQueue()
        for process in self._processes:
            free.put(process)

        def one(pair: tuple[str, str]) -> Verdict:
            process = free.get()
            try:
                return process.compare(*pair)
            finally:
                free.put(process)

        with ThreadPoolExecutor(len(self._processes)) as threads:
            return list(threads.map(one, pairs))

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()


@contextlib.contextmanager
def comparison_pool(workers: int) -> Iterator[ComparisonPool]:
    """A pool for the time of a block."""
    pool = ComparisonPool(workers=workers)
    try:
        yield pool
    finally:
        pool.close()


_shared = ComparisonProcess(TIME_LIMIT)
_shared_lock = threading.Lock()
atexit.register(_shared.close)


def shared_compare(given: str, expected: str) -> Verdict:
    """Compare in this program's one shared process."""
    with _shared_lock:
        return _shared.compare(given, expected)


def _write_line(process: subprocess.Popen[bytes], line: bytes) -> None:
    if process.stdin is not None:
        process.stdin.write(line)
        process.stdin.flush()


def _read_line(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """The next line of the process; None when the time passed, empty when the process has ended."""
    if process.stdout is None:
        return b""
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        piece = os.read(descriptor, 4096)
        if not piece:
            return b""
        line += piece
    return line
