"""The offload of a frozen teacher: its weights rest in one block of host memory, and only travel to the GPU.

What else would stay on the GPU goes with them: what modules and Megatron remember of their forwards, and torch's
workspace. (`translate` asks NeMo-RL to clear Transformer Engine's FP8 copies.) Runs in the Megatron workers.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch
from torch import Tensor

#: Bytes at whose multiples each parameter of a host copy begins.
ALIGNMENT = 64


def host_copy(model: torch.nn.Module) -> list[Tensor]:
    """The model's parameters in one block of host memory, page-locked where there is a GPU.

    The block is registered by hand because torch rounds its own page-locked allocations up to a power of two.
    """
    parameters = list(model.parameters())
    sizes = [-(-parameter.nbytes // ALIGNMENT) * ALIGNMENT for parameter in parameters]
    block = torch.empty(sum(sizes), dtype=torch.uint8)
    if torch.cuda.is_available():
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(cudart.cudaHostRegister(block.data_ptr(), block.nbytes, 0))
    pieces = zip(torch.split(block, sizes), parameters, strict=True)
    return [piece[: like.nbytes].view(like.dtype).view(like.shape).copy_(like.detach()) for piece, like in pieces]


def move_frozen_model(model: torch.nn.Module, device: str, host: Sequence[Tensor]) -> None:
    """Move a frozen model between a device and its `host_copy`; the memory it leaves on the device is given back.

    Going back, the parameters become the host copy again and nothing is copied.
    """
    for parameter, at_rest in zip(model.parameters(), host, strict=True):
        parameter.data = at_rest.to(device, non_blocking=True)
    model.to(device)  # the buffers
    clear_forward_caches(model)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        # torch keeps a workspace for its matrix products, 32 MiB on a Hopper GPU, and makes it again when it is needed.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def clear_forward_caches(model: torch.nn.Module) -> None:
    """Forget what modules remember of their forwards: Megatron's rotary embedding keeps one table for each length.

    A cached method belongs to the class, so that its cache also holds the tables of other models in this process; they
    are computed again when needed.
    """
    for kind in {type(module) for module in model.modules()}:
        for name in dir(kind):
            clear = getattr(getattr(kind, name, None), "cache_clear", None)
            if clear is not None:
                clear()


def free_gathered() -> None:
    """Free the buffers that Megatron keeps in the process: a sequence-parallel output layer gathers into one."""
    from megatron.core.parallel_state import get_global_memory_buffer

    get_global_memory_buffer().buffer.clear()
