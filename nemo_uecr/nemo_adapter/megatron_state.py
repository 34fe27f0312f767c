"""What Megatron itself says in a worker: its process groups, and whose parameters are wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Groups:
    """Megatron's process groups of this rank; None where the group has one rank."""

    tensor: Any
    context: Any
    pipeline: Any
    tensor_rank: int
    last_stage: bool
    answers: bool
    """Whether this is the one of the ranks with the same rows whose answer travels to the driver."""


def model_parallel_groups() -> Groups:
    """The groups that Megatron set up."""
    from megatron.core import parallel_state as state

    def group(size: int, found: Any) -> Any:
        return found if size > 1 else None

    return Groups(
        tensor=group(state.get_tensor_model_parallel_world_size(), state.get_tensor_model_parallel_group()),
        context=group(state.get_context_parallel_world_size(), state.get_context_parallel_group()),
        pipeline=group(state.get_pipeline_model_parallel_world_size(), state.get_pipeline_model_parallel_group()),
        tensor_rank=state.get_tensor_model_parallel_rank(),
        last_stage=state.is_pipeline_last_stage(ignore_virtual=True),
        answers=state.get_tensor_model_parallel_rank() == 0
        and state.get_context_parallel_rank() == 0
        and state.is_pipeline_first_stage(ignore_virtual=True),
    )


def is_wrapped(model: Any) -> bool:
    """Whether Megatron's data-parallel wrapper owns the model's parameters."""
    from megatron.core.distributed import DistributedDataParallel
    from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel

    return isinstance(model, DistributedDataParallel | FullyShardedDataParallel)


def free_gathered() -> None:
    """Free the buffers that Megatron keeps in the process: a sequence-parallel output layer gathers into one."""
    from megatron.core.parallel_state import get_global_memory_buffer

    get_global_memory_buffer().buffer.clear()
