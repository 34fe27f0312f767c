"""Runs megatron-core and Megatron-Bridge in one process on a CPU.

Both use CUDA in a few places whatever the device: the current device, `Module.cuda`, the CUDA generator in attention,
an unconditional import of Transformer Engine. `megatron_on_cpu` replaces these with the CPU and restores them at its
end; neither package is edited. A conversion runs on the CPU even on a machine with a GPU, so that the arithmetic of the
proof, float32 on one rank, is the same everywhere.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import logging
import queue
import sys
import types
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from nemo_uecr.errors import DependencyError

ENGINE = "transformer_engine"
#: Packages that the bridge imports but does not need here.
STAND_INS = (ENGINE, "modelopt", "datasets", "megatron.energon")
TRAINING = "megatron.bridge.training.model_load_save"


@contextlib.contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """One rank of megatron-core over gloo on the CPU, with Megatron-Bridge imported."""
    import torch

    # Both packages print, and one import warns dozens of times that Apex is not installed.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        import_bridge()  # first: torch's compiler, which it imports, refuses two names for one function
        from megatron.core.dist_checkpointing.strategies import filesystem_async

        cuda = mock.patch.multiple(torch.cuda, **_replacements())
        move = mock.patch.object(torch.nn.Module, "cuda", lambda module, device=None: module)
        # Megatron's writer starts a server process for its results, which would survive a kill of this one.
        queues = mock.patch.object(filesystem_async, "_get_write_results_queue", queue.Queue, create=True)
        with cuda, move, _cpu_mode(), _random_states(), _experts(), queues, _one_rank():
            yield


def require_bridge() -> None:
    """Refuse to start without Megatron-Bridge, and silence the libraries."""
    if importlib.util.find_spec("megatron.bridge") is None:
        raise DependencyError(
            "megatron.bridge is not installed; convert inside NeMo-RL's container, or run: "
            "pip install --no-deps megatron-bridge==0.3.1"
        )
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("megatron").setLevel(logging.ERROR)
    logging.getLogger("megatron.bridge.utils.import_utils").setLevel(logging.CRITICAL)  # of what a stand-in lacks


def import_bridge() -> None:
    """Import Megatron-Bridge, with empty modules for missing `STAND_INS` during the import."""
    missing = frozenset(name for name in STAND_INS if importlib.util.find_spec(name) is None)
    if ENGINE in missing and TRAINING not in sys.modules:
        # megatron-core checks at import whether Transformer Engine exists; it must not find the stand-in.
        _import_engine_users()
    finder = _StandIn(missing)
    sys.meta_path.append(finder)
    try:
        importlib.import_module("megatron.bridge")
        importlib.import_module(TRAINING)
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.provides(name)]:
            del sys.modules[name]


def _import_engine_users() -> None:
    import megatron.core

    folder = Path(megatron.core.__path__[0])
    for file in sorted(folder.rglob("*.py")):
        if ENGINE in file.read_text(encoding="utf-8"):
            parts = file.relative_to(folder).with_suffix("").parts
            name = ".".join(("megatron.core", *parts)).removesuffix(".__init__")
            # A module that fails to import here cannot mistake the stand-in for the real package either.
            with contextlib.suppress(ImportError, AttributeError, NameError, TypeError, RuntimeError, AssertionError):
                importlib.import_module(name)


def _empty(name: str) -> Any:
    """A class for `isinstance`; one with a function's name does nothing when called."""
    import torch

    return _EmptyClass(name, (torch.nn.Module,), {} if name[:1].isupper() else {"__new__": _nothing})


def _inside(owner: object, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _empty(name)


class _EmptyClass(type):
    __getattr__ = _inside


class _EmptyModule(types.ModuleType):
    __version__ = "0.0.0"
    __getattr__ = _inside


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Provides empty modules for the missing packages."""

    def __init__(self, roots: Collection[str]) -> None:
        self._roots = roots

    def provides(self, name: str) -> bool:
        """Whether it is one of the packages or within one."""
        return any(f"{name}.".startswith(f"{root}.") for root in self._roots)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of an empty module for a missing package or submodule."""
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if self.provides(fullname) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""


class _Idle:
    """A CUDA stream or event on which nothing ever runs."""

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **options: None

    def record_event(self, *arguments: Any, **options: Any) -> _Idle:
        return self  # whoever records it waits for it


def _nothing(*arguments: Any, **options: Any) -> None: ...


def _replacements() -> dict[str, Any]:
    """What stands in for functions of torch.cuda."""
    import torch

    # Each has a function of its own: torch's compiler, which a router's decorator wakes, refuses one under two names.
    idle = {name: functools.partial(_nothing) for name in ("set_device", "synchronize", "empty_cache")}
    return {
        **idle,
        "current_device": lambda: torch.device("cpu"),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "is_available": lambda: False,
        "Stream": _Idle,
        "Event": _Idle,
        "current_stream": _Idle,
        "stream": lambda stream: contextlib.nullcontext(),
    }


def _cpu_mode() -> contextlib.AbstractContextManager[Any]:
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                return args[0]
            if str(named.get("device")).startswith("cuda"):
                named["device"] = torch.device("cpu")
            return func(*args, **named)

    return OnCpu()


def _random_states() -> contextlib.AbstractContextManager[Any]:
    """Stub the CUDA generators that attention forks even without dropout; no random number is drawn."""
    from megatron.core.tensor_parallel import random

    return mock.patch.multiple(
        random,
        _CUDA_RNG_STATE_TRACKER=mock.MagicMock(**{"get_states.return_value": {}}),
        _CUDA_RNG_STATE_TRACKER_INITIALIZED=True,
        initialize_rng_tracker=_nothing,
    )


@contextlib.contextmanager
def _experts() -> Iterator[None]:
    """What a layer with experts asks of a GPU: counts that reach the host as numpy, where the all-to-all reads them.

    megatron-core 0.16 leaves the name of a function of Transformer Engine undefined where that is missing.
    """
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def counts(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and hasattr(tensor, "numpy") else tensor

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", counts))
        if not hasattr(moe_utils, "te_general_gemm"):
            stack.enter_context(mock.patch.object(moe_utils, "te_general_gemm", None, create=True))
        yield


@contextlib.contextmanager
def _one_rank() -> Iterator[None]:
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
