"""Judge responses, comparing mathematics in processes that can be killed.

A comparison can hang inside one big-integer operation, where neither a signal handler nor a thread gets a turn. So it
runs in a process of its own, which is killed after the time limit and replaced. The process is a plain
``python -m``: unlike `multiprocessing`, that neither forks a parent with CUDA and threads nor imports the user's
script again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import IO, cast

from nemo_uecr.errors import DependencyError, UecrError
from nemo_uecr.verifier.compare import compare, judge_plain
from nemo_uecr.verifier.extract import Checked, Verdict, last_boxed, reference_answer

#: Seconds one comparison may take.
TIME_LIMIT = 5.0
#: Seconds the process may take to load its libraries on a busy machine.
START_LIMIT = 300.0
#: Address space of the process: a power tower must end in an error of its own, not in the machine's swap.
MEMORY_BYTES = 4 << 30
#: Seconds after which a comparison ends its own process, in case the parent was killed.
ORPHAN_LIMIT = 120


def check_response(response: str, answer: str) -> Checked:
    r"""Judge a response by the content of its last ``\boxed{...}``.

    Args:
        response: the sampled text, without the prompt.
        answer: the reference answer, bare or boxed.
    """
    extracted = last_boxed(response)
    if not extracted:
        return Checked(Verdict.NO_ANSWER, extracted)
    return Checked(judge(extracted, reference_answer(answer)), extracted)


def check_responses(responses: Sequence[str], answers: Sequence[str], pool: ComparisonPool) -> list[Checked]:
    """Judge many responses as `check_response` judges one, each distinct pair once.

    Args:
        responses: sampled texts, without the prompts.
        answers: reference answers, bare or boxed.
        pool: where mathematics is compared.

    Returns:
        One verdict a response, in order.
    """
    given = [last_boxed(response) for response in responses]
    pairs = [(text, reference_answer(answer)) for text, answer in zip(given, answers, strict=True)]
    found = {(text, reference): judge_plain(text, reference) for text, reference in pairs if text}
    hard = [pair for pair, verdict in found.items() if verdict is None]
    found |= dict(zip(hard, pool.compare_all(hard), strict=True))
    return [
        Checked((found[text, reference] or Verdict.ERROR) if text else Verdict.NO_ANSWER, text)
        for text, reference in pairs
    ]


def check_conversations(
    conversations: Sequence[Sequence[Mapping[str, object]]], answers: Sequence[str], pool: ComparisonPool
) -> list[Checked]:
    """Judge what the assistant said in each conversation; a box in the prompt does not count.

    Args:
        conversations: turns with ``role`` and ``content``, as a NeMo-RL environment receives them.
        answers: reference answers.
        pool: where mathematics is compared.
    """
    spoken = ["".join(str(turn["content"]) for turn in turns if turn["role"] == "assistant") for turns in conversations]
    return check_responses(spoken, answers, pool)


@functools.lru_cache(maxsize=65_536)
def judge(given: str, expected: str) -> Verdict:
    """Whether two answer texts are equivalent; what needs mathematics goes to this program's one shared process."""
    quick = judge_plain(given, expected)
    if quick is not None:
        return quick
    with _shared_lock:
        return _shared.compare(given, expected)


class ComparisonProcess:
    """One process that compares, started when first needed and replaced when it was killed."""

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        """Remember the limit, in seconds a comparison."""
        self._time_limit = time_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def compare(self, given: str, expected: str) -> Verdict:
        """The verdict; `timeout` when the limit passed, `error` when the comparison ended the process.

        Raises:
            DependencyError: If math-verify is not installed.
            UecrError: If the process does not start.
        """
        process = self._running()
        try:
            _requests(process).write(json.dumps([given, expected]).encode() + b"\n")
            _requests(process).flush()
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
        with contextlib.suppress(BrokenPipeError):
            _requests(process).close()
        _answers(process).close()

    def _running(self) -> subprocess.Popen[bytes]:
        if find_spec("math_verify") is None:
            raise DependencyError("comparing answers needs math-verify; pip install 'nemo-uecr[verify]'")
        # After a fork the pipes are shared with the parent, so each process needs a child of its own.
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return self._process
            self.close()  # it ended between two comparisons
        for _ in range(2):  # the second try is for a process that was killed while it loaded
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nemo_uecr.verifier.pool"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self._owner = os.getpid()
            if _read_line(self._process, START_LIMIT):
                return self._process
            self.close()
        raise UecrError("the comparison process did not start; run: python -m nemo_uecr.verifier.pool")


class ComparisonPool:
    """Several comparison processes for many pairs."""

    def __init__(self, *, workers: int, time_limit: float = TIME_LIMIT) -> None:
        """Processes start when the first pair needs them."""
        self._processes = [ComparisonProcess(time_limit) for _ in range(workers)]

    def compare_all(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """The verdicts of (given, expected) pairs, in order."""
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
    """A pool for the length of a block."""
    pool = ComparisonPool(workers=workers)
    try:
        yield pool
    finally:
        pool.close()


_shared = ComparisonProcess()
_shared_lock = threading.Lock()
atexit.register(_shared.close)


def _requests(process: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast(IO[bytes], process.stdin)


def _answers(process: subprocess.Popen[bytes]) -> IO[bytes]:
    return cast(IO[bytes], process.stdout)


def _read_line(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """The process's next line; None when the time passed, empty when it has ended."""
    pipe, deadline = _answers(process), time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        piece = os.read(pipe.fileno(), 4096)
        if not piece:
            return b""
        line += piece
    return line


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer one JSON pair a line with one verdict a line; the first line says that the libraries are loaded."""
    compare(r"\frac{1}{2}", "0.5")
    answers.write(b"ready\n")
    answers.flush()
    for line in requests:
        signal.alarm(ORPHAN_LIMIT)  # its default action ends the process even inside a big-integer operation
        answers.write(compare(*json.loads(line)).value.encode() + b"\n")
        answers.flush()
        signal.alarm(0)


def _main() -> None:
    # A request to stop may reach every process of a job. The run finishes its step first, and so must this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what a library prints is no verdict
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    _main()
