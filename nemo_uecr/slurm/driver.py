"""The driver as a child process: its output to the log and to the job's, its silence, the signal that makes it save."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from nemo_uecr.slurm.process_group import end_group

__all__ = ["Driver"]

#: The signal is sent again and again: it is lost on a driver that is still loading.
AGAIN_S = 5.0
KILLING_S = 10.0


class Driver:
    """The running driver."""

    def __init__(self, words: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """Start it."""
        # Ignored signals stay ignored in a child until it sets a handler; unhandled, SIGUSR1 would kill it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
        )
        self._heard = time.monotonic()
        self._signalled = 0.0
        self._copier = threading.Thread(target=self._copy, args=(log, self._process.stdout), daemon=True)
        self._copier.start()

    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def silent_s(self) -> float:
        """Seconds since its last output."""
        return time.monotonic() - self._heard

    def ask_to_save(self) -> None:
        """Let it finish its step, save and end."""
        if time.monotonic() - self._signalled > AGAIN_S:
            self._signalled = time.monotonic()
            self._process.send_signal(signal.SIGUSR1)

    def stop(self) -> int:
        """End it and its children, at once if it does not end by itself; returns its exit code."""
        code = end_group(self._process, KILLING_S)
        self._copier.join(KILLING_S)
        return code

    def _copy(self, log: Path, output: IO[bytes]) -> None:
        with log.open("ab", buffering=0) as file:
            for line in output:
                self._heard = time.monotonic()
                file.write(line)
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
