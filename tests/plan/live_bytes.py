"""Bytes of real tensors: the most that are alive while a piece of code runs, and what autograd keeps of a forward."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts every storage that an operation makes until it is freed; those of the tensors given were there before."""

    def __init__(self, *before: torch.Tensor) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)):
            if storage._cdata not in self._seen:
                self._seen.add(storage._cdata)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return made

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


@contextlib.contextmanager
def keeping(model: torch.nn.Module) -> Iterator[dict[int, torch.Tensor]]:
    """What is kept inside the block for a backward, each storage once, the model's own weights aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def nbytes(kept: dict[int, torch.Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
