"""Code of the user's in processes of its own, reward functions and environments: how it is started, asked, given up on.

`UserProcess` and `Failures` are this side of the pipe, `work` and `traceback_of` the other.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from nemo_uecr.errors import ConfigError, RewardError
from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.process import ChildProcess, outlive_requests_to_stop, serve

#: Largest share of a step's responses on which a user's code may fail, and most in a row that it may leave unanswered.
MOST_FAILED, MOST_SILENT = 0.05, 5
#: Of how many responses that share is, where they come one by one.
SINGLES = 100
#: What the code prints goes where the run's own messages go.
STDERR = 2
#: Seconds beyond its time limit after which a worker whose parent is gone ends itself.
ORPHAN_MARGIN = 60
#: Frames and characters of a traceback that are passed on.
FRAMES, TRACEBACK = 4, 4_000


class UnusableError(Exception):
    """The code is not what it is asked for as."""


@dataclass(frozen=True)
class Failure:
    """Why a user's code has no answer for a response: `timeout` or `error`, and what is known of it."""

    verdict: Verdict
    reason: str


class UserProcess(ChildProcess):
    """A process that runs something from a user's file, with a time limit for each request."""

    def __init__(self, module: str, settings: Mapping[str, object], *, key: str, timeout_s: float) -> None:
        """Start it, so that what cannot be loaded is reported before anything else begins.

        ``settings``, with ``call``, are what the module's worker is made of; ``key`` is the configuration's, for
        messages.
        """
        words = [json.dumps(settings), str(math.ceil(timeout_s) + ORPHAN_MARGIN)]
        super().__init__(module, words, time_limit=timeout_s, output=STDERR)
        self.hello: Mapping[str, Any] = self.start()
        if "error" in self.hello:
            self.close()
            raise ConfigError(f"{key}.call: {settings['call']} cannot be used: {self.hello['error']}")

    def answer(self, request: object) -> Any:
        """What the worker answers; `Failure` where it does not, or says that the code failed."""
        try:
            found = self.ask(request)
        except TimeoutError as error:
            return Failure(Verdict.TIMEOUT, str(error))
        except EOFError:
            return Failure(Verdict.ERROR, "it ended its process")
        return Failure(Verdict.ERROR, found["failed"]) if "failed" in found else found


class Failures:
    """On which of a step's responses a user's code failed; too many end the run. Safe for several threads."""

    def __init__(self, what: str, responses: int, singles: deque[bool]) -> None:
        """Take the code's name and the number of responses.

        ``singles`` says of the last responses that came alone whether it failed on them, and is told of this one.
        """
        self._what, self._responses, self._singles = what, responses, singles
        self._reasons: dict[str, str] = {}
        self._silent, self._lock = 0, threading.Lock()

    def note(self, response: str, found: object) -> None:
        """What the code answered on a response, by its name.

        Raises:
            RewardError: It failed on too many, or left too many in a row unanswered: do not wait for the rest.
        """
        with self._lock:
            if isinstance(found, Failure):
                self._reasons[response] = found.reason
            late = isinstance(found, Failure) and found.verdict is Verdict.TIMEOUT
            self._silent = self._silent + 1 if late else 0
            failed, of = len(self._reasons), self._responses
            if of == 1:
                failed, of = failed + sum(self._singles), SINGLES
            self._check(failed, of)

    def end(self) -> None:
        """Every response is answered."""
        if self._responses == 1:
            self._singles.append(bool(self._reasons))

    def _check(self, failed: int, of: int) -> None:
        if failed > MOST_FAILED * of or self._silent == MOST_SILENT:
            limit = f"{self._silent} in a row" if self._silent == MOST_SILENT else f"over {MOST_FAILED:.0%}"
            first, reason = next(iter(self._reasons.items()))
            raise RewardError(
                f"{self._what} failed on at least {failed} of {of} responses, {limit}; the first ({first}):\n{reason}"
            )


def singles() -> deque[bool]:
    """For `Failures`, of no response yet."""
    return deque(maxlen=SINGLES)


def traceback_of(error: BaseException, file: str) -> str:
    """The traceback from the user's own line on, below those of ``file``, a worker's; the error where there is none."""
    first = error.__traceback__
    while first and first.tb_frame.f_code.co_filename.startswith(("<frozen", file, __file__)):
        first = first.tb_next
    if first is None:
        return "".join(traceback.format_exception_only(error)).strip()
    trace = traceback.format_exception(type(error), error, first, limit=-FRAMES)
    return "".join(trace)[-TRACEBACK:].strip()


class Loop:
    """One event loop for all calls of a process: a client or a semaphore belongs to its loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def awaited(self, value: Any) -> Any:
        """A value, or what it is the promise of."""
        return self._loop.run_until_complete(value) if inspect.isawaitable(value) else value


def work(
    pipe: Connection,
    load: Callable[[], Any],
    hello: Callable[[Any], Mapping[str, object]],
    answer: Callable[[Any, Any], object],
    *,
    file: str,
    seconds: int,
) -> None:
    """A worker's life: load the code, say ``hello`` of it or why it is unusable, and answer requests."""
    outlive_requests_to_stop()
    try:
        code = load()
        said = hello(code)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's file may raise anything
        known = isinstance(error, ConfigError | UnusableError)
        pipe.send_bytes(json.dumps({"error": str(error) if known else traceback_of(error, file)}).encode())
        return
    serve(pipe, said, lambda request: answer(code, request), seconds=seconds)
