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
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe

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
    return Checked(judge(extracted, reference_answer(answer)) if extracted else Verdict.NO_ANSWER, extracted)


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
    distinct = [(text, reference) for text, reference in dict.fromkeys(pairs) if text]
    verdicts = dict(zip(distinct, pool.judge_all(distinct), strict=True))
    return [Checked(verdicts[text, reference] if text else Verdict.NO_ANSWER, text) for text, reference in pairs]


def check_conversations(
    conversations: Sequence[Sequence[Mapping[str, object]]], answers: Sequence[str], pool: ComparisonPool
) -> list[Checked]:
    """Judge what the assistant said in each of NeMo-RL's conversations; a box in the prompt does not count."""
    spoken = ["".join(str(turn["content"]) for turn in turns if turn["role"] == "assistant") for turns in conversations]
    return check_responses(spoken, answers, pool)


@functools.lru_cache(maxsize=65_536)
def judge(given: str, expected: str) -> Verdict:
    """Whether two answer texts are equivalent; what needs mathematics goes to this program's one shared process."""
    return _shared.judge(given, expected)


class ComparisonProcess:
    """One process that compares, started when first needed and replaced when it was killed."""

    def __init__(self, time_limit: float = TIME_LIMIT) -> None:
        self._time_limit = time_limit  # seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def compare(self, given: str, expected: str) -> Verdict:
        """The verdict; `timeout` when the limit passed, `error` when the comparison ended the process."""
        self._ensure_running()
        try:
            self._pipe.send_bytes(json.dumps([given, expected]).encode())
            if self._pipe.poll(self._time_limit):
                return Verdict(self._pipe.recv_bytes().decode())
            verdict = Verdict.TIMEOUT
        except (EOFError, OSError):
            verdict = Verdict.ERROR
        self.close()
        return verdict

    def close(self) -> None:
        """End the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            self._pipe.close()

    def _ensure_running(self) -> None:
        if find_spec("math_verify") is None:
            raise DependencyError("comparing answers needs math-verify; pip install 'nemo-uecr[verify]'")
        # After a fork the pipe is shared with the parent, so each process needs a child of its own.
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return
            self.close()  # it ended between two comparisons
        for _ in range(2):  # the second try is for a process that was killed while it loaded
            self._pipe, theirs = Pipe()
            self._owner = os.getpid()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "nemo_uecr.verifier.pool", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                )
            with contextlib.suppress(EOFError, OSError):
                if self._pipe.poll(START_LIMIT):
                    self._pipe.recv_bytes()
                    return
            self.close()
        raise UecrError("the comparison process did not start; run: python -m nemo_uecr.verifier.pool 1")


class ComparisonPool:
    """Several comparison processes, each started when the first pair needs it; usable from several threads."""

    def __init__(self, *, workers: int, time_limit: float = TIME_LIMIT) -> None:
        self._processes = [ComparisonProcess(time_limit) for _ in range(workers)]
        self._free: queue.SimpleQueue[ComparisonProcess] = queue.SimpleQueue()
        for process in self._processes:
            self._free.put(process)

    def judge(self, given: str, expected: str) -> Verdict:
        """Whether two answer texts are equivalent."""
        quick = judge_plain(given, expected)
        if quick is not None:
            return quick
        process = self._free.get()
        try:
            return process.compare(given, expected)
        finally:
            self._free.put(process)

    def judge_all(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """The verdicts of (given, expected) pairs, in order."""
        with ThreadPoolExecutor(len(self._processes)) as threads:
            return list(threads.map(lambda pair: self.judge(*pair), pairs))

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()


@contextlib.contextmanager
def comparison_pool(workers: int) -> Iterator[ComparisonPool]:
    """A pool for the length of a block."""
    with contextlib.closing(ComparisonPool(workers=workers)) as pool:
        yield pool


_shared = ComparisonPool(workers=1)
atexit.register(_shared.close)


def serve(pipe: Connection) -> None:
    """Answer pairs with verdicts until the other end closes; the first message says that the libraries are loaded."""
    # A request to stop may reach every process of a job. The run finishes its step first, and so must this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    compare(r"\frac{1}{2}", "0.5")
    pipe.send_bytes(b"ready")
    with contextlib.suppress(EOFError):
        while True:
            pair = json.loads(pipe.recv_bytes())
            signal.alarm(ORPHAN_LIMIT)  # its default action ends the process even inside a big-integer operation
            pipe.send_bytes(compare(*pair).value.encode())
            signal.alarm(0)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
