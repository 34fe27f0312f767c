"""A rehearsal of `cluster_parts` without a GPU: what NeMo-RL's worker asks of CUDA, NCCL and Transformer Engine.

`apply` in a process of its own, before NeMo-RL's worker or Megatron-Bridge is imported there, and for good. Real are
NeMo-RL's worker, megatron-core's model, optimizer and wrapper, the bridge's conversion and export, and our own code. In
the place of Transformer Engine's layers are megatron-core's own, with attention that knows packed rows; of NCCL, gloo;
of CUDA's memory, streams and generators, the host's, where nothing is ever freed or full.
"""

from __future__ import annotations

import importlib.abc
import sys
import types
from pathlib import Path
from typing import Any

from benchmarks.quarter import ROOT

ENGINE = frozenset({"transformer_engine", "transformer_engine_torch"})
#: Functions of torch.cuda and what they return.
CUDA: dict[str, Any] = {
    "_lazy_init": None, "device_count": 1, "get_device_capability": (9, 0), "get_device_name": "none",
    "is_initialized": False, "manual_seed": None, "max_memory_allocated": 0, "max_memory_reserved": 0,
    "mem_get_info": (2**36, 2**36), "memory_reserved": 0, "reset_peak_memory_stats": None, "set_device": None,
}  # fmt: skip


class Absent(importlib.abc.MetaPathFinder):
    """Says that Transformer Engine is not installed."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Of any module."""
        if fullname.split(".")[0] in ENGINE:
            raise ModuleNotFoundError(f"no {fullname} in a rehearsal", name=fullname)


class Seeming:
    """A module that answers some names otherwise."""

    def __init__(self, real: Any, **other: Any) -> None:
        self._real, self._other = real, other

    def __getattr__(self, name: str) -> Any:
        return self._other[name] if name in self._other else getattr(self._real, name)


def apply() -> None:
    """Patch torch, megatron-core and the bridge in this process."""
    import torch

    tests = types.ModuleType("tests")  # this project's: NeMo-RL's tree and some wheels have packages of that name
    tests.__path__ = [str(ROOT / "tests")]
    sys.modules["tests"] = tests
    from nemo_uecr.conversion import on_cpu

    # megatron-core and the bridge ask whether Transformer Engine is there, and the bridge imports it after a no, too.
    absent = Absent()
    sys.meta_path.insert(0, absent)
    on_cpu._import_engine_users()
    sys.meta_path.remove(absent)
    sys.meta_path.insert(0, on_cpu._StandIn(ENGINE))
    from tests.nemo import tiny_qwen3

    torch._dynamo.config.disable = True
    tiny_qwen3.allow_cpu()
    native = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend=None, **more: native("gloo", **more)
    for name, value in CUDA.items():
        setattr(torch.cuda, name, lambda *given, value=value, **named: value)
    torch.cuda.current_device = _device  # type: ignore[assignment]
    torch.Tensor.pin_memory = lambda tensor, *given, **named: tensor.clone()  # type: ignore[method-assign]
    from megatron.bridge.training import initialize
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *given, **named: torch.get_rng_state()
    random._set_cuda_rng_state = lambda *given, **named: None
    initialize.torch = Seeming(torch, cuda=Seeming(torch.cuda, is_available=lambda: True))  # it asks once, at its start
    # NeMo-RL takes the conversion's parallel state down, and with it the stand-in for CUDA's generators.
    initialize._set_random_seed = lambda *given, **named: tiny_qwen3.KEPT.enter_context(on_cpu._random_states())
    _own_layers()


def without_fusions(section: dict[str, Any]) -> None:
    """Take out of a worker's section what needs Transformer Engine or a compiled kernel."""
    megatron = section["megatron_cfg"]
    megatron |= dict.fromkeys(("apply_rope_fusion", "bias_activation_fusion", "moe_permute_fusion"), False)
    megatron["optimizer"]["use_precision_aware_optimizer"] = False


def _device() -> Any:
    """The CPU; but NeMo-RL's worker asks for the number of its GPU."""
    import torch

    caller = Path(sys._getframe(1).f_code.co_filename).name
    return 0 if caller == "megatron_policy_worker.py" else torch.device("cpu")


def _own_layers() -> None:
    """megatron-core's layers wherever the bridge asks for Transformer Engine's."""
    from megatron.bridge.models import gpt_provider
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    from nemo_uecr.conversion.bridge import _name_the_norms
    from tests.nemo.tiny_qwen3 import PackedAttention

    def spec(config: Any, *given: Any, **named: Any) -> Any:
        found = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
        found.submodules.self_attention.submodules.core_attention = PackedAttention
        return found

    gpt_provider.transformer_engine_layer_spec = spec  # which the providers' default calls
    _name_the_norms()
