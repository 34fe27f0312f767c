"""The Triton kernels in Triton's interpreter, in a process of its own: the interpreter is chosen at import."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_uecr


def release(package: str) -> tuple[int, ...]:
    found = importlib.metadata.version(package) if importlib.util.find_spec(package) else "0.0"
    return tuple(int(number) for number in found.split(".")[:2])


pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(
        release("triton") < (3, 7) and release("numpy") >= (2, 4),
        reason="the interpreter of Triton before 3.7 takes no numpy from 2.4 on; the kernels do not need it",
    ),
]


def test_kernels_in_the_interpreter() -> None:
    root = Path(nemo_uecr.__file__).parents[1]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(root), *sys.path])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/scoring/interpreted.py"]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
