"""Functions in a Python of their own, with NeMo-RL and a Megatron that fits it, and a time after which they end."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.nemo.inside.conftest import ON_PYTHON_311, forked_workers
from tests.nemo.source import SOURCE

ROOT = Path(__file__).resolve().parents[4]
#: megatron-core and Megatron-Bridge as NeMo-RL has them; `make .venv-nemo-megatron/.installed`.
MEGATRON = ROOT / ".venv-nemo-megatron"
needs_megatron = pytest.mark.skipif(not (MEGATRON / "megatron").is_dir(), reason=f"no {MEGATRON.name}: make test-nemo")


def isolated(function: Callable[..., Any], *args: Any, folder: Path, seconds: float, driver: bool = False) -> Any:
    """What the function returns; its error and last output, if it raises or takes longer.

    A driver of Ray has no Megatron on its own path, only its workers have: Ray imports the worker's class where it
    reads a handle of one, and without Triton that import would fail half-way and leave torch's loader of tensors
    replaced.
    """
    return _isolated([(function, args)], folder=folder, seconds=seconds, driver=driver)[0]


def each_isolated(calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], *, folder: Path, seconds: float) -> Any:
    """What each function returns, in a process of its own that is forked from one with the worker's imports.

    They take longer than most calls.
    """
    return _isolated(calls, folder=folder, seconds=seconds, driver=False)


def _isolated(
    calls: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]], *, folder: Path, seconds: float, driver: bool
) -> list[Any]:
    light = [ON_PYTHON_311, str(ROOT), str(SOURCE)]
    heavy = os.pathsep.join([ON_PYTHON_311, str(MEGATRON), *light[1:]])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(light) if driver else heavy, "WORKERS_PATH": heavy,
        "WORKERS_ON_CPU": str(os.getpid()), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "FORKED_WORKERS": forked_workers(), "TORCHDYNAMO_DISABLE": "1", "TORCH_CUDA_ARCH_LIST": "9.0",
        # NeMo-RL keeps its conversions by the model's path alone.
        "NRL_MEGATRON_CHECKPOINT_DIR": str(folder / "megatron"),
    }  # fmt: skip
    environment.pop("RAY_ADDRESS", None)  # of a Ray that other tests of this process use
    answers = [folder / f"answer-{number}.pickle" for number in range(len(calls))]
    for answer in answers:
        answer.unlink(missing_ok=True)
    named = [
        (function.__module__, function.__qualname__, args, answer)
        for (function, args), answer in zip(calls, answers, strict=True)
    ]
    command = [sys.executable, "-W", "ignore", "-m", __name__, pickle.dumps(named).hex()]
    started = subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        written = started.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired as error:
        written = f"{(error.stdout or b'').decode()[-6000:]}\nno end within {seconds:g} s"
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    assert all(answer.exists() for answer in answers), written[-8000:]
    return [pickle.loads(answer.read_bytes()) for answer in answers]


def _main(calls: Sequence[tuple[str, str, tuple[Any, ...], Path]]) -> None:
    if len(calls) > 1:
        importlib.import_module("nemo_uecr.nemo.ray_worker")
    for module, name, args, answer in calls:
        if len(calls) > 1 and (child := os.fork()):
            if os.waitpid(child, 0)[1]:
                _end(1)
            continue
        result = getattr(importlib.import_module(module), name)(*args)
        answer.write_bytes(pickle.dumps(result))
        _end(0)


def _end(status: int) -> None:
    """Nothing is deleted: NeMo-RL's policies would start a second Ray after the end of the first, and wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _fail(*raised: Any) -> None:
    traceback.print_exception(*raised)
    _end(1)


if __name__ == "__main__":
    sys.excepthook = _fail
    _main(pickle.loads(bytes.fromhex(sys.argv[1])))
    _end(0)
