"""Counting the collectives of a piece of code, whoever calls them and by whatever name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NAMESPACES = ("c10d", "_c10d_functional")
WAITS = ("wait_tensor",)
INPUT_SECOND = ("allgather", "gather", "reduce_scatter", "alltoall", "scatter")


@dataclass(frozen=True)
class Collective:
    """One operation on a process group, and the bytes that this rank brought to it."""

    name: str
    sent: int


class CollectiveCount(TorchDispatchMode):
    """Sees every operation on a process group at torch's dispatcher, and counts the default group's at its backend.

    Attributes:
        seen: the operations of this thread, from the dispatcher, in order.
        at_backend: how many collectives the backend of the default group began between entry and exit; those
            are counted in C++, below every Python name, whichever thread began them.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Collective] = []
        self.at_backend = 0
        self._device = device
        self._before = 0

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._before = self._sequence()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self.at_backend = self._sequence() - self._before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in NAMESPACES:
            name = str(func.overloadpacket.__name__).strip("_")
            if name not in WAITS:
                brought = args[1] if name.startswith(INPUT_SECOND) and len(args) > 1 else args[0]
                self.seen.append(Collective(name, _bytes(brought)))
        call: Callable[..., Any] = func
        return call(*args, **(kwargs or {}))

    def _sequence(self) -> int:
        if not dist.is_initialized():
            return 0
        backend: Any = dist.group.WORLD._get_backend(self._device)  # type: ignore[union-attr]
        return int(backend._get_sequence_number_for_group())


def _bytes(brought: Any) -> int:
    if isinstance(brought, Tensor):
        return brought.numel() * brought.element_size()
    return sum(_bytes(part) for part in brought) if isinstance(brought, list | tuple) else 0
