"""Runs a function on several ranks over gloo, each in a process of its own, forked from one that has the imports."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import pickle
import select
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
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{pickle.dumps(call).hex()}\n".encode())
        server.stdin.flush()
        ended = select.select([server.stdout], [], [], SECONDS)[0] and server.stdout.readline()
        if not ended:  # this call hangs, or the server is gone
            _end(server)
            _server.cache_clear()
        assert ended == b"0\n", (Path(folder) / "written").read_text()[-6000:]
        return [pickle.loads((Path(folder) / f"result{rank}").read_bytes()) for rank in range(world)]


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    """The process that imports and forks; it lives as long as this one, because imports take longer than most calls."""
    # Not NeMo-RL's source tree: it has a package `tests` of its own, which would hide ours.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = os.pathsep.join([str(ROOT), *(path for path in given if path != SOURCE)])
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", __name__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}, start_new_session=True,
    )  # fmt: skip
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _serve() -> None:
    """Answer each call on standard input with a line: 0, or 1 if it failed; what it writes goes into its folder."""
    import torch

    torch.set_num_threads(1)
    answers = os.dup(1)
    for line in sys.stdin:
        call = pickle.loads(bytes.fromhex(line))
        with (Path(call[0]) / "written").open("wb") as written:
            os.dup2(written.fileno(), 1)
            os.dup2(written.fileno(), 2)
        for name in call[2]:
            importlib.import_module(name)
        if (child := os.fork()) == 0:
            _call(*call)
        os.write(answers, b"%d\n" % bool(os.waitpid(child, 0)[1]))


def _call(folder: str, world: int, imports: Sequence[str], name: str, arguments: dict[str, Any]) -> None:
    import torch.multiprocessing

    called = (folder, world, getattr(sys.modules[imports[-1]], name), arguments)
    torch.multiprocessing.start_processes(_rank, called, nprocs=world, start_method="fork")
    os._exit(0)


def _rank(rank: int, folder: str, world: int, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    result = function(rank, **arguments)
    (Path(folder) / f"result{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _serve()
