"""Worker processes that never outlive their parent, nor do their own children.

Each worker leads its own process group, which ends with it, and watches its parent, so that it ends even if the parent
is killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import TypeVar

from nemo_uecr.errors import RunFolderError
from nemo_uecr.stopping import RunStopped, StopRequest

#: Interval of the checks for a stop request.
POLL_SECONDS = 0.2
#: Time for workers to finish and save the current step before they are killed.
GRACE_SECONDS = 30.0

Item = TypeVar("Item")
Result = TypeVar("Result")


def work_on(
    work: Callable[[Item], Result], items: Iterable[Item], *, processes: int, stop: StopRequest
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with its result, in order of completion, from worker processes; `work` must be importable.

    `RunStopped` is raised after the workers have saved and ended.
    """
    others = set(active_children())
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_end_with_the_parent)
    try:
        left, waiting = deque(items), dict[Future[Result], Item]()
        while left or waiting:
            while left and len(waiting) < processes:  # a queued item would start after a stop request
                item = left.popleft()
                waiting[pool.submit(work, item)] = item
            for future in wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()
            if stop.asked:
                raise RunStopped(f"stopped by {stop.reason}; finished items are kept, and the same command continues")
    except BaseException as error:  # Ctrl-C included
        _end(pool, set(active_children()) - others)
        if isinstance(error, BrokenProcessPool):
            raise RunFolderError(
                "a worker process was killed, perhaps for lack of memory; finished items are kept. Free memory, or "
                "lower processes, and run the same command again"
            ) from error
        raise
    pool.shutdown()


def _end_with_the_parent() -> None:
    """In a worker: lead a process group, and end it when the parent ends."""
    parent = parent_process()
    assert parent is not None  # noqa: S101  a worker has one
    os.setpgrp()

    def watch() -> None:
        parent.join()
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _end(pool: ProcessPoolExecutor, workers: set[BaseProcess]) -> None:
    """Ask every worker to save and end, and kill those that do not in time."""
    pool.shutdown(wait=False, cancel_futures=True)
    try:
        for worker in workers:
            _signal(worker, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
    finally:  # a second Ctrl-C cuts the waiting short
        for worker in workers:
            _signal(worker, signal.SIGKILL)


def _signal(worker: BaseProcess, number: signal.Signals) -> None:
    """Signal the worker's process group, or the worker alone if it leads none."""
    if worker.pid is None:
        return
    try:
        os.killpg(worker.pid, number)
    except ProcessLookupError:
        if worker.is_alive():
            worker.kill()
