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
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._note(leaf.untyped_storage())
        return made

    def _note(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


class Kept:
    """The tensors that a forward kept for its backward, each storage once."""

    def __init__(self) -> None:
        self.tensors: dict[int, torch.Tensor] = {}

    def nbytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors.values())


@contextlib.contextmanager
def keeping(model: torch.nn.Module) -> Iterator[Kept]:
    """What is kept inside the block, the model's own weights aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = Kept()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept.tensors[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept
