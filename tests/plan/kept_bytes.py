"""Counts what autograd keeps of a forward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


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
