"""Builds every rank's part of a tiny model in megatron-core, one after another in one process, and prints its sizes.

The process group is torch's fake one: groups exist and know their ranks, no collective moves anything. That is enough
to build modules, gradient buffers and the distributed optimizer's shards.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from tests.nemo.tiny_qwen3 import allow_cpu, make_model
from tests.plan.subjects import TINY


def optimizer_bytes(model: Any) -> dict[str, int]:
    """Gradient buffers of Megatron's DDP, and all tensors that its distributed optimizer holds for this rank."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    options = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    wrapped = DistributedDataParallel(model.config, options, model)
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, bf16=True, use_distributed_optimizer=True)
    optimizer = get_megatron_optimizer(settings, [wrapped], use_gloo_process_groups=False)
    gradients = sum(buffer.grad_data.nbytes for buffer in wrapped.buffers)
    masters = moments = 0
    for one in optimizer.chained_optimizers:
        one.init_state_fn(one.optimizer, one.config)
        for group in one.optimizer.param_groups:
            masters += sum(parameter.nbytes for parameter in group["params"])
        for state in one.optimizer.state.values():
            moments += sum(value.nbytes for value in state.values() if torch.is_tensor(value) and value.dim() > 0)
    return {"gradients": gradients, "optimizer": masters + moments}


def measure(tensor: int, pipeline: int, data: int, *, tied: bool, optimizer: bool) -> list[dict[str, int]]:
    """Sizes of every rank."""
    from megatron.core import parallel_state as state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found = []
    world = tensor * pipeline * data
    for rank in range(world):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        state.initialize_model_parallel(tensor, pipeline, create_gloo_process_groups=False)
        model = make_model(tensor, pipeline, tied=tied, layers=TINY["layers"], dtype=torch.bfloat16)
        sizes = {
            "pipeline": state.get_pipeline_model_parallel_rank(),
            "tensor": state.get_tensor_model_parallel_rank(),
            "data": state.get_data_parallel_rank(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": len(model.decoder.layers),
        }
        if optimizer:
            sizes |= optimizer_bytes(model)
        found.append(sizes)
        state.destroy_model_parallel()
        dist.destroy_process_group()
    return found


if __name__ == "__main__":
    allow_cpu()
    sys.stdout.write(json.dumps([measure(**case) for case in json.loads(sys.argv[1])]))
