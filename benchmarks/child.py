"""A measured case in a process of its own, with a given number of threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def output_of(module: str, words: Sequence[str], *, threads: int) -> str:
    """What ``python -m module words`` prints; its standard error is passed on."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    threading = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        env={**os.environ, **threading, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout
