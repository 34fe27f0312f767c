"""Another process that holds a run folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nemo_uecr.files import locked


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Another process that holds the folder; killed at the end, as a run may be."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        with locked(folder):
            os.write(writing, b"x")
            signal.pause()
        os._exit(0)
    os.read(reading, 1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
