"""Lets megatron-core run on CPU over gloo: the few places where it insists on CUDA are answered with the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class OnCpu(TorchFunctionMode):
    """Turns every request for a CUDA device into one for the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        if func is torch.Tensor.to:
            args = tuple(CPU if _is_cuda(value) else value for value in args)
        return func(*args, **kwargs)


def _is_cuda(device: Any) -> bool:
    return (isinstance(device, str) and device.startswith("cuda")) or (
        isinstance(device, torch.device) and device.type == "cuda"
    )


class _Idle:
    """A CUDA stream or event that has nothing to do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *error: object) -> None: ...


class CpuStates:
    """Named random states over the CPU generator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.states: dict[str, torch.Tensor] = {}

    def is_initialized(self) -> bool:
        return True

    def reset(self) -> None:
        self.states = {}

    def add(self, name: str, seed: int) -> None:
        self.states[name] = torch.Generator().manual_seed(seed).get_state()

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self.states)

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        yield


def plain_norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **options: Any) -> torch.nn.Module:
    """An RMSNorm whose weight is marked for the reduction over sequence-parallel ranks; Megatron's refuses these."""
    norm = torch.nn.RMSNorm(hidden_size, eps=eps)
    norm.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def allow_cpu() -> None:
    """Patch torch and megatron-core in this process; call it in a process of its own."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.synchronize = cuda.empty_cache = lambda *args, **kwargs: None
    cuda.memory_allocated = lambda *args, **kwargs: 0
    cuda.Stream = cuda.Event = _Idle
    cuda.current_stream = cuda.stream = lambda *args, **kwargs: _Idle()
    from megatron.core.tensor_parallel import random as states
    from megatron.core.transformer import torch_norm

    torch_norm.WrappedTorchNorm.__new__ = plain_norm
    states.CudaRNGStatesTracker = CpuStates
    OnCpu().__enter__()
