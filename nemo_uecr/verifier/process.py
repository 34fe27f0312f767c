"""A child process that answers one request at a time and can be killed.

Foreign code can hang where neither a signal handler nor a thread gets a turn. It therefore runs in a process of its
own, which is killed after the time limit and replaced. The process is a plain ``python -m``: unlike `multiprocessing`,
it neither forks a parent with CUDA and threads nor imports the user's script again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, Generic, TypeVar

from nemo_uecr.errors import UecrError

#: Seconds the process may take to load its libraries on a busy machine.
START_LIMIT = 300.0


class ChildProcess:
    """``python -m MODULE PIPE WORDS``, started when first needed, and again after it was killed."""

    def __init__(self, module: str, words: Sequence[str], *, time_limit: float, output: int) -> None:
        """Take the module, the seconds per request, and the file descriptor for what the process prints."""
        self._module, self._words = module, words
        self._time_limit, self._output = time_limit, output
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._hello: Any = None

    def ask(self, request: object) -> Any:
        """The answer to a request; both are JSON values.

        Raises:
            TimeoutError: The limit passed, this one or the process's own; the process was killed.
            EOFError: The request ended the process.
        """
        self.start()
        try:
            self._pipe.send_bytes(json.dumps(request).encode())
            if self._pipe.poll(self._time_limit):
                return json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            ended = self._process
            self.close()
            if ended is None or ended.returncode != -signal.SIGPROF:
                raise EOFError(f"{self._module} ended") from error
        self.close()
        raise TimeoutError(f"no answer within {self._time_limit:g} s")

    def start(self) -> Any:
        """Start the process unless it runs; returns its first message, sent once it has loaded."""
        # After a fork the pipe is shared with the parent, so each process needs a child of its own.
        if self._process is not None and self._owner == os.getpid():
            if self._process.poll() is None:
                return self._hello
            self.close()  # it ended between two requests
        for _ in range(2):  # the second try is for a process that was killed while it loaded
            self._pipe, theirs = Pipe()
            self._owner = os.getpid()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", self._module, str(theirs.fileno()), *self._words],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                    start_new_session=True,  # so that what it starts can be killed with it
                )
            with contextlib.suppress(EOFError, OSError):
                if self._pipe.poll(START_LIMIT):
                    self._hello = json.loads(self._pipe.recv_bytes())
                    return self._hello
            self.close()
        raise UecrError(f"a helper process did not start; run: python -m {self._module} 1")

    def close(self) -> None:
        """Kill the process and its children."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._pipe.close()


P = TypeVar("P", bound=ChildProcess)


class Pool(Generic[P]):
    """Processes of one kind for several threads: the first is made at once, one more whenever all are busy."""

    def __init__(self, make: Callable[[], P], most: int) -> None:
        """Take what makes one, and how many there may be."""
        self._make, self._most = make, most
        self.first = make()
        self._made, self._free, self._change = [self.first], [self.first], threading.Condition()

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[P]:
        """One of the processes for the length of a block, which waits for one where all are busy."""
        with self._change:
            self._change.wait_for(lambda: self._free or len(self._made) < self._most)
            if not self._free:
                self._free.append(self._make())
                self._made.append(self._free[0])
            one = self._free.pop()
        try:
            yield one
        finally:
            with self._change:
                self._free.append(one)
                self._change.notify()

    def close(self) -> None:
        """End the processes."""
        for each in self._made:
            each.close()


def serve(
    pipe: Connection, hello: object, answer: Callable[[Any], object], *, seconds: float, timer: int = signal.ITIMER_REAL
) -> None:
    """Answer requests until the other end closes; ``hello`` reports that everything is loaded.

    A request that takes more than ``seconds`` by the ``timer`` ends the process, whether or not its parent still lives.
    """
    with contextlib.suppress(EOFError, BrokenPipeError):
        pipe.send_bytes(json.dumps(hello).encode())
        while True:
            request = json.loads(pipe.recv_bytes())
            signal.setitimer(timer, seconds)  # its signal ends the process even inside a big-integer operation
            pipe.send_bytes(json.dumps(answer(request)).encode())
            signal.setitimer(timer, 0)


def outlive_requests_to_stop() -> None:
    """Ignore the signals that ask a job to end: the run finishes its step first, and so must this process.

    What the process starts in turn does not inherit it, and can be ended by a signal.
    """
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    for number in asking:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: [signal.signal(number, signal.SIG_DFL) for number in asking])
