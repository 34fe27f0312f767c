"""What Megatron itself says in a worker: its process groups, and whose parameters are wrapped."""

from __future__ import annotations

from typing import Any

from nemo_uecr.nemo.columns import ModelParallel


def model_parallel() -> ModelParallel:
    """The groups that Megatron set up."""
    from megatron.core import parallel_state as state

    tensor, context = state.get_tensor_model_parallel_group(), state.get_context_parallel_group()
    return ModelParallel(tensor if tensor.size() > 1 else None, context if context.size() > 1 else None)


def last_stage() -> bool:
    """Whether this rank holds the end of the model, and so its logits."""
    from megatron.core import parallel_state as state

    return bool(state.is_pipeline_last_stage(ignore_virtual=True))


def is_wrapped(model: Any) -> bool:
    """Whether Megatron's data-parallel wrapper owns the model's parameters."""
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    return isinstance(model, DistributedDataParallel | FullyShardedDataParallel)


def free_gathered() -> None:
    """Free the buffers that Megatron keeps in the process: a sequence-parallel output layer gathers into one."""
    from megatron.core.parallel_state import get_global_memory_buffer

    get_global_memory_buffer().buffer.clear()
