"""A pretend GPU: tensors that say they are on ``cuda``, compute on the CPU, refuse mixed devices and count the waits.

    with pretend() as waits:
        to_cuda(module)
        ...
    with captures():
        graph = torch.cuda.CUDAGraph()
        ...

A wait is what torch waits for on a real one: reading values (``item``, ``bool``, ``tolist``, ``nonzero``, indexing by a
mask), synchronising, and copies between host and device that are not ``non_blocking``. It has no streams and no
kernels. `captures` is for tensors of the host. Inference mode must be off: it does not dispatch here.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

CUDA = torch.device("cuda", 0)
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim"}
#: Operations that take a tensor on the host beside those on the device: by a copy, and indices by one of their own.
COPIES, INDEXING = {"_to_copy", "copy_"}, {"index", "index_put", "index_put_", "_index_put_impl_"}
WAITS: Counter[str] = Counter()  # by operation


class OnDevice(torch.Tensor):
    """A tensor on the pretend GPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device="cpu", requires_grad=inner.requires_grad,
        )  # fmt: skip
        made.inner = inner.detach()
        return made

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl

    def cpu(self, *_: Any, wait: bool = True) -> Tensor:
        if wait:
            WAITS["cpu"] += 1
        return self.inner.clone()

    def tolist(self) -> Any:
        WAITS["tolist"] += 1
        return self.inner.tolist()

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        devices = [each for each in (*args, kwargs.get("device")) if isinstance(each, str | torch.device)]
        if any(torch.device(each).type == "cpu" for each in devices):
            return self.cpu(wait=not kwargs.get("non_blocking")).to(*args, **kwargs)
        args = tuple(each for each in args if each not in devices)
        kwargs.pop("device", None)
        return torch.Tensor.to(self, *args, **kwargs) if args or kwargs else self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the host what the device would have computed."""
    flat, name = tree_flatten((args, kwargs))[0], func.overloadpacket.__name__
    here = [each for each in flat if isinstance(each, OnDevice)]
    host = [each for each in flat if isinstance(each, Tensor) and not isinstance(each, OnDevice)]
    asked = kwargs.get("device")
    on_device = torch.device(asked).type == "cuda" if asked is not None and not here else bool(here)
    if here and name not in COPIES | INDEXING and any(each.ndim for each in host):
        raise RuntimeError(f"Expected all tensors to be on the same device: {name}")
    by_mask = name in INDEXING and any(each is not None and each.dtype == torch.bool for each in args[1])
    if (here and name in READS) or by_mask:
        WAITS[name] += 1
    # `where` moves a number to the device like any tensor of the host.
    copied = on_device and name in COPIES and (host or not here) and not kwargs.get("non_blocking")
    if copied or (here and host and name in INDEXING | {"where"}):
        WAITS[f"{name} to the device"] += 1
    inner = tree_map(lambda each: each.inner if isinstance(each, OnDevice) else each, (args, kwargs))
    if asked is not None:
        inner[1]["device"] = torch.device("cpu")
    found = func(*inner[0], **inner[1])
    changed = {id(each.inner): each for each in here} if func._schema.is_mutable else {}

    def wrapped(each: Any) -> Any:
        made = on_device and isinstance(each, Tensor) and id(each) not in changed
        return OnDevice(each) if made else changed.get(id(each), each)

    return tree_map(wrapped, found)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def tensor(values: Any, *args: Any, make: Any = torch.tensor, **kwargs: Any) -> Tensor:
    """torch.tensor, which does not dispatch where it makes the values."""
    device = torch.device(kwargs.pop("device", None) or "cpu")
    made: Tensor = make(values, *args, **kwargs)
    return made.to(device)


@contextlib.contextmanager
def pretend() -> Iterator[Counter[str]]:
    """torch with a pretend GPU; yields the waits."""
    WAITS.clear()
    stream = SimpleNamespace(synchronize=lambda: WAITS.update(["synchronize"]))
    cuda = patch.multiple(
        "torch.cuda", _lazy_init=lambda: None, is_available=lambda: True, current_stream=lambda *_: stream
    )
    with cuda, patch("torch.Tensor.pin_memory", lambda x: x), patch("torch.tensor", tensor), _Mode():
        yield WAITS


def to_cuda(module: torch.nn.Module) -> None:
    """Move a module in place."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            moved = OnDevice(parameter.detach())
            part.register_parameter(name, torch.nn.Parameter(moved, requires_grad=parameter.requires_grad))
        for name, buffer in part.named_buffers(recurse=False):
            part.register_buffer(name, OnDevice(buffer))


class RecordedGraph(TorchDispatchMode):
    """The rules of a CUDA graph: a capture changes nothing and may not wait, a replay works on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        if func._schema.is_mutable:
            given = tree_flatten((args, kwargs))[0]
            self.before += [(each, each.clone()) for each in given if isinstance(each, Tensor)]
        made = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, made))
        return made

    def replay(self) -> None:
        for func, args, kwargs, made in self.calls:
            for old, new in zip(tree_flatten(made)[0], tree_flatten(func(*args, **kwargs))[0], strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextlib.contextmanager
def _capture(graph: RecordedGraph, capture_error_mode: str) -> Iterator[None]:
    try:
        with graph:
            yield
    finally:
        for changed, old in reversed(graph.before):
            changed.copy_(old)


@contextlib.contextmanager
def captures() -> Iterator[None]:
    """torch with graphs on the host."""
    modes = {"get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": lambda mode: None}
    with patch.multiple("torch.cuda", CUDAGraph=RecordedGraph, graph=_capture, **modes):
        yield
