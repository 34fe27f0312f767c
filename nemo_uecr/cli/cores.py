"""How threads wait, chosen before torch starts them: a spinning thread takes a core from the one it waits for."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import MutableMapping, Sequence

logger = logging.getLogger(__name__)

#: Commands that use the CPU for seconds or hours.
COMPUTING = ("train", "demo", "smoke", "advise", "replay", "evaluate", "score", "audit")
PROBES = 3  # probes that must agree that the machine is busy
PROBE_SECONDS = 0.05
#: Share of the probe's time. Two cores with one other busy process leave 0.5 to 0.7, an idle machine 0.9 to 1.
SHARE_OF_A_FREE_CORE = 0.8
USERS_CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
BLOCK = bytes(2**20)  # long enough for hashlib to release the GIL


def choose_wait_policy(words: Sequence[str], environment: MutableMapping[str, str] = os.environ) -> None:
    """Let OpenMP's threads sleep while they wait if other processes use the cores, unless the user chose otherwise.

    The results have the same bits. On an idle machine, threads that spin are up to twice as fast.
    """
    computes = bool(words) and words[0] in COMPUTING and "--help" not in words
    if not computes or any(name in environment for name in USERS_CHOICES):
        return
    if all(core_share() < SHARE_OF_A_FREE_CORE for _ in range(PROBES)):
        environment["OMP_WAIT_POLICY"] = "passive"
        logger.info("other processes use the cores: OMP_WAIT_POLICY=passive; set OMP_WAIT_POLICY to choose yourself")


def core_share() -> float:
    """Mean share of the time that threads, one per core, actually run."""
    from concurrent.futures import ThreadPoolExecutor

    def share(_: int) -> float:
        started, ran = time.perf_counter(), time.thread_time()
        while time.perf_counter() - started < PROBE_SECONDS:
            hashlib.sha256(BLOCK)
        return (time.thread_time() - ran) / (time.perf_counter() - started)

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as threads:
        return sum(threads.map(share, range(cores))) / cores
