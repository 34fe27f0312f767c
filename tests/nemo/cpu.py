"""Lets megatron-core run on CPU over gloo with many ranks, by what the conversion does for one."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nemo_uecr.conversion import on_cpu

#: Never left.
KEPT = contextlib.ExitStack()


class Moves(TorchFunctionMode):
    """``tensor.to("cuda")`` and ``tensor.type()``, which a conversion never calls: as on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to:
            args = (args[0], *("cpu" if str(value).startswith("cuda") else value for value in args[1:]))
        found = func(*args, **(kwargs or {}))
        if func is torch.Tensor.type and isinstance(found, str):
            found = found.replace("torch.", "torch.cuda.")  # Megatron's optimizer asks for it
        return found


def plain_norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **options: Any) -> torch.nn.Module:
    """An RMSNorm whose weight is marked for the reduction over sequence-parallel ranks; Megatron's refuses these."""
    norm = torch.nn.RMSNorm(hidden_size, eps=eps)
    norm.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def allow_cpu() -> None:
    """Patch torch and megatron-core in this process; call it in a process of its own."""
    replaced = on_cpu._replacements()
    del replaced["set_device"]  # torch's compiler refuses two names for one function
    for name, value in replaced.items():
        setattr(torch.nn.Module if name == "Module.cuda" else torch.cuda, name.rpartition(".")[2], value)
    cuda: Any = torch.cuda
    cuda.memory_allocated = lambda *args, **kwargs: 0
    KEPT.enter_context(on_cpu._cpu_mode())
    KEPT.enter_context(Moves())
    KEPT.enter_context(on_cpu._random_states())
    from megatron.core.transformer import torch_norm

    torch_norm.WrappedTorchNorm.__new__ = plain_norm
