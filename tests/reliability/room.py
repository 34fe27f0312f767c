"""A command in a process whose files may have so many bytes and no more: a disk that is full at one of its writes."""

from __future__ import annotations

import io
import logging
import resource
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from nemo_uecr.errors import UecrError
from tests.local.tiny import in_child


def with_room(bytes_a_file: int, work: Callable[[], None]) -> None:
    """Do something in this process with the limit on; for a child."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, resource.RLIM_INFINITY))
    work()


def limited(command: Callable[[], int], bytes_a_file: int) -> tuple[int, str]:
    """A command's exit code and all that it said, which goes through a pipe.

    pytest catches what is said in files of its own, which would meet the limit before the command's do.
    """

    def work() -> None:
        said = io.StringIO()
        _log_into(said)
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            code = command()
        if code == 2:
            raise UecrError(said.getvalue())

    return in_child(lambda: with_room(bytes_a_file, work))


def _log_into(said: io.StringIO) -> None:
    """Turn every log that goes to a stream: handlers keep the stream that they were made with."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(said)
