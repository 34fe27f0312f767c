"""Memory of one advantage computation: the output and little more."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import ScoredBatch
from tests.core.batches import SETTINGS


class Live(TorchDispatchMode):
    """Adds up the bytes of every live tensor that an operation creates."""

    def __init__(self, batch: ScoredBatch) -> None:
        super().__init__()
        self.bytes, self.peak = 0, 0
        inputs = [tensor for tensor in vars(batch).values() if isinstance(tensor, Tensor)]
        self.seen = {tensor.untyped_storage().data_ptr(): 0 for tensor in inputs}

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().nbytes():
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.seen:
                    self.seen[storage.data_ptr()] = storage.nbytes()
                    self.bytes += storage.nbytes()
                    self.peak = max(self.peak, self.bytes)
                    # A view shares the storage, and the storage's wrapper lives as long as one of them does.
                    weakref.finalize(storage, self.free, storage.data_ptr())
        return out

    def free(self, pointer: int) -> None:
        self.bytes -= self.seen.pop(pointer)


def test_extra_memory_is_little_more_than_the_output() -> None:
    rows, columns = 64, 16384
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(rows, columns, generator=g)
    batch = ScoredBatch(
        task_reward_B=(torch.arange(rows) % 3 == 0).float(),
        group_B=torch.arange(rows) // 8,
        mask_BT=torch.rand(rows, columns, generator=g) < 0.9,
        old_logp_BT=old,
        teacher_logp_BT=old + 0.3 * torch.randn(rows, columns, generator=g),
        teacher_entropy_BT=torch.rand(rows, columns, generator=g),
    )
    with Live(batch) as live:
        out = METHODS["uecr"].compute(batch, SETTINGS)
    # The output itself counts 1; less would mean that the accounting missed it.
    assert 1.0 <= live.peak / out.advantage_BT.nbytes <= 1.2
