"""A measured case in a process of its own, with a given number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from nemo_uecr.errors import UecrError

__all__ = ["output_of"]


def output_of(module: str, words: Sequence[str], *, threads: int, failed: str) -> str:
    """What ``python -m module words`` prints.

    Raises:
        UecrError: it failed; the message is ``failed`` and its last line.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        env={**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UecrError(f"{failed}{last}")
    return done.stdout
