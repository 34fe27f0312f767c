"""A name that the ranks of a process group share and that no earlier group on the same store has had.

A store can outlive the groups made on it (a launcher's store does), and a new group finds the keys its
predecessor left. Whatever the ranks write later therefore stands under a name that is drawn anew for each group.
Rank 0 draws it. Each other rank asks for it with a number of its own, so that an answer to an earlier group's
question is never taken for its own, and says when it has it, so that rank 0 does not stop at a stale question.
It takes a few milliseconds, once a group, and nothing of it stays in the store.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

PREFIX = "nemo_uecr/scoring"
POLL_S = 0.001
LONGEST_POLL_S = 0.05


class Generation:
    """One rank's side of the naming. After a timeout `name` may be called again and goes on where it stood."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._drawn = uuid.uuid4().hex
        self._settled: str | None = None

    def name(self, store: Store) -> str:
        """The shared name; waits for the other ranks the first time.

        Raises:
            torch.distributed.DistStoreError: not all ranks asked within the store's timeout.
        """
        if self._settled is None:
            if self._rank == 0:
                self._tell(store)
                self._settled = self._drawn
            else:
                self._settled = self._ask(store)
        return self._settled

    def _ask(self, store: Store) -> str:
        store.set(_question(self._rank), self._drawn)
        store.wait([_answer(self._drawn)])
        name: str = store.get(_answer(self._drawn)).decode()
        store.set(_thanks(name, self._rank), "1")
        return name

    def _tell(self, store: Store) -> None:
        deadline = time.monotonic() + store.timeout.total_seconds()  # type: ignore[attr-defined]
        asked: dict[int, str] = {}
        waiting = set(range(1, self._size))
        pause = POLL_S
        while waiting:
            for rank in sorted(waiting):
                if store.check([_thanks(self._drawn, rank)]):
                    waiting.discard(rank)
                elif store.check([_question(rank)]):
                    number = store.get(_question(rank)).decode()
                    if asked.get(rank) != number:
                        store.set(_answer(number), self._drawn)
                        asked[rank] = number
            if waiting and time.monotonic() > deadline:
                raise dist.DistStoreError(f"no word from the ranks {sorted(waiting)} of the group")
            if waiting:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_POLL_S)
        for rank, number in asked.items():
            for key in (_question(rank), _answer(number), _thanks(self._drawn, rank)):
                store.delete_key(key)


def _question(rank: int) -> str:
    return f"{PREFIX}/question/{rank}"


def _answer(number: str) -> str:
    return f"{PREFIX}/answer/{number}"


def _thanks(name: str, rank: int) -> str:
    return f"{PREFIX}/thanks/{name}/{rank}"
