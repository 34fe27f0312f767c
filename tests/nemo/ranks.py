"""Runs a function on several ranks over gloo, each in a process of its own, forked from one that has the imports."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.nemo.source import SOURCE

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240
MEGATRON = ("megatron.core", "transformers.models.qwen3.modeling_qwen3")


def run_ranks(
    world: int, function: Callable[..., Any], *, imports: Sequence[str] = MEGATRON, **arguments: Any
) -> list[Any]:
    """What ``function(rank, **arguments)`` returned on each rank; its error, if one raised.

    ``imports`` names the modules that the ranks share: megatron-core alone takes seconds.

    Raises:
        AssertionError: a rank failed or did not end in time, with what it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        call = (folder, world, (*imports, function.__module__), function.__qualname__, arguments)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": _paths()}
        ranks = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", __name__, pickle.dumps(call).hex()],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            written = ranks.communicate(timeout=SECONDS)[0]
        finally:
            if ranks.poll() is None:
                os.killpg(ranks.pid, signal.SIGKILL)
                ranks.wait()
        assert ranks.returncode == 0, written[-6000:]
        return [pickle.loads((Path(folder) / f"result{rank}").read_bytes()) for rank in range(world)]


def _paths() -> str:
    # Not NeMo-RL's source tree: it has a package `tests` of its own, which would hide ours.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(path for path in given if path != SOURCE)])


def _main(folder: str, world: int, imports: Sequence[str], name: str, arguments: dict[str, Any]) -> None:
    import torch.multiprocessing

    torch.set_num_threads(1)
    *_, module = [importlib.import_module(name) for name in imports]
    called = (folder, world, getattr(module, name), arguments)
    torch.multiprocessing.start_processes(_rank, called, nprocs=world, start_method="fork")


def _rank(rank: int, folder: str, world: int, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    result = function(rank, **arguments)
    (Path(folder) / f"result{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(*pickle.loads(bytes.fromhex(sys.argv[1])))
