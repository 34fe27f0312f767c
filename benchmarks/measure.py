"""Shared by the benchmarks: cases in their own processes, peak memory, and collectives per call."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
MEBI = 1_048_576
Outcome = TypeVar("Outcome")


def outputs_of(
    module: str, words: Sequence[str], *, threads: int, ranks: int = 1, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Standard output of ``python -m module words`` in each of ``ranks`` simultaneous processes.

    Raises:
        subprocess.CalledProcessError: a process failed; the others are ended.
    """
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    shared = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "PYTHONPATH": paths}
    shared |= {"WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo", **(environment or {})}
    command = [sys.executable, "-m", module, *words]
    processes = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process in processes:
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, command)
    return outputs


def peak_extra(run: Callable[[], Outcome], *, device: str) -> tuple[Outcome, int]:
    """A call's result, and the peak increase of device or resident memory in bytes."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        outcome = run()
        return outcome, torch.cuda.max_memory_allocated() - held
    before = reset_peak()
    outcome = run()
    return outcome, max(0, peak_resident() - before)


def least_seconds(run: Callable[[], Any], repetitions: int) -> dict[str, float]:
    """The least processor and wall time of this process; ranks start together."""
    cpu_s, wall_s = float("inf"), float("inf")
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    for _ in range(repetitions):
        if dist.is_initialized():
            dist.barrier()
        wait()
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        wait()
        cpu_s, wall_s = min(cpu_s, time.process_time() - cpu), min(wall_s, time.perf_counter() - wall)
    return {"cpu_s": cpu_s, "wall_s": wall_s}


def reset_peak() -> int:
    """Reset the process's peak resident memory to the current one, and return it (Linux); bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_resident() -> int:
    """Peak resident memory since `reset_peak`; bytes."""
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def collectives_begun() -> int:
    """Number of collectives started by the default group's backend, counted in C++."""
    if not dist.is_initialized():
        return 0
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    return int(backend._get_sequence_number_for_group())
