"""Runs a function on several ranks over gloo, each in a process of its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240


def run_ranks(world: int, function: Callable[..., Any], **arguments: Any) -> list[Any]:
    """What ``function(rank, **arguments)`` returned on each rank; its error, if one raised.

    Raises:
        AssertionError: a rank failed or did not end in time, with what it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        call = (function.__module__, function.__qualname__, arguments)
        packed = pickle.dumps(call).hex()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": _paths()}
        processes = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", __name__, folder, str(rank), str(world), packed],
                env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            written = [process.communicate(timeout=SECONDS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        for rank, process in enumerate(processes):
            assert process.returncode == 0, f"rank {rank}:\n{written[rank][-6000:]}"
        return [pickle.loads((Path(folder) / f"result{rank}").read_bytes()) for rank in range(world)]


def _paths() -> str:
    # Not NeMo-RL's source tree: it has a package `tests` of its own, which would hide ours.
    source = os.environ.get("NEMO_RL_SOURCE")
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(path for path in given if path != source)])


def _main(folder: str, rank: int, world: int, call: str) -> None:
    import importlib

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    module, name, arguments = pickle.loads(bytes.fromhex(call))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    result = getattr(importlib.import_module(module), name)(rank, **arguments)
    (Path(folder) / f"result{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
