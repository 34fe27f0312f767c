"""Memory of one advantage computation: the output and little more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Runs in a process of its own and adds up the bytes of every live tensor that an operation creates.
MEASURE = """
import sys, weakref
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.records import ScoredBatch, Settings

torch.set_num_threads(1)
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
settings = Settings(alpha=1.0, rho=0.5, tau_delta=1.0, tau_entropy=1.0, std_floor=0.0, sample_std=False, seed=0)


class Live(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.bytes, self.peak, self.seen = 0, 0, {}
        for tensor in vars(batch).values():
            if isinstance(tensor, torch.Tensor):
                self.seen[tensor.untyped_storage().data_ptr()] = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes():
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.seen:
                    self.seen[storage.data_ptr()] = storage.nbytes()
                    self.bytes += storage.nbytes()
                    self.peak = max(self.peak, self.bytes)
                    # A view shares the storage, and the storage's wrapper lives as long as one of them does.
                    weakref.finalize(storage, self.free, storage.data_ptr())
        return out

    def free(self, pointer):
        self.bytes -= self.seen.pop(pointer)


with Live() as live:
    out = METHODS["uecr"].compute(batch, settings)
sys.stdout.write(f"{live.peak / out.advantage_BT.nbytes:.4f}")
"""


def test_extra_memory_is_little_more_than_the_output() -> None:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    peak = float(done.stdout)
    # The output itself counts 1; less would mean that the accounting missed it.
    assert 1.0 <= peak <= 1.2, f"peak of live tensors is {peak} times the output"
