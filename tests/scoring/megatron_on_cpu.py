"""What megatron-core needs to run on a CPU over gloo, as replacements from outside; nothing of it is edited.

It asks for CUDA in four places: `device="cuda"` in its schedules, the current device and streams, the state of
the CUDA generator around attention, and norms that refuse sequence parallelism without Transformer Engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class CudaMeansCpu(TorchFunctionMode):
    """Turns every request for a CUDA device into one for the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if "device" in kwargs and str(kwargs["device"]).startswith("cuda"):
            kwargs["device"] = CPU
        return func(*args, **kwargs)


class IdleStream:
    """A stream or event on which nothing ever runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class CpuRandomStates:
    """Named states of the CPU generator, with the interface of Megatron's tracker of CUDA states."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.states: dict[str, torch.Tensor] = {}

    def is_initialized(self) -> bool:
        return True

    def reset(self) -> None:
        self.states.clear()

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self.states)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self.states = dict(states)

    def add(self, name: str, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.states[name] = torch.get_rng_state()

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        if name not in self.states:
            yield
            return
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states[name])
        try:
            yield
        finally:
            self.states[name] = torch.get_rng_state()
            torch.set_rng_state(outside)


def plain_norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **options: Any) -> torch.nn.Module:
    """An RMSNorm whose weight is marked for the reduction over sequence-parallel ranks."""
    norm = torch.nn.RMSNorm(hidden_size, eps=eps)
    norm.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def install() -> None:
    """Apply the replacements to this process. Call before a model is built."""
    CudaMeansCpu().__enter__()
    torch.cuda.current_device = lambda: CPU  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *args, **kwargs: None
    torch.cuda.Stream = torch.cuda.Event = IdleStream  # type: ignore[misc, assignment]
    torch.cuda.current_stream = lambda *args, **kwargs: IdleStream()  # type: ignore[assignment, return-value]
    torch.cuda.stream = lambda *args: contextlib.nullcontext()  # type: ignore[assignment]
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import torch_norm

    random.CudaRNGStatesTracker = CpuRandomStates
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    torch_norm.WrappedTorchNorm.__new__ = plain_norm
