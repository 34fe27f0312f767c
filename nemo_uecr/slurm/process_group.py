"""The end of a process that leads a group of its own, and of everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

__all__ = ["end_group"]


def end_group(process: subprocess.Popen[bytes], patience_s: float) -> int:
    """Ask a process to end, kill it after that long, and kill what is left of its group; returns its exit code."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
    finally:  # a signal to this process may cut the wait short
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
