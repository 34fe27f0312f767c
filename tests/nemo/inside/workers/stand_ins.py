"""What NeMo-RL's real workers ask of CUDA, Transformer Engine, NVML and NCCL, stood in for: each with its reason.

Nothing stands in for NeMo-RL, Megatron's optimizer, its wrapper or its checkpoints, the bridge, Ray, or vLLM's engine.
Call `megatron` or `vllm_worker` in a process of its own: what they replace stays replaced.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import json
import os
import queue
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import torch

from nemo_uecr.conversion import on_cpu

ENGINE = ("transformer_engine", "transformer_engine_torch")
#: Imported by the bridge at its top, and never used in a training step without Transformer Engine.
UNUSED = ("triton", "modelopt", "megatron.energon")
KEPT = contextlib.ExitStack()  # never left


def megatron() -> None:
    """Before a process imports NeMo-RL's Megatron worker."""
    _imports()
    _cuda()
    _devices_everywhere()
    _bridge()
    _layers()
    _optimizer()
    _nvml()


def common_state(folder: Path) -> dict[str, Any]:
    """The names in a checkpoint's common state, which NeMo-RL's main reads in its driver: this one has no Megatron.

    The workers' megatron-core reads them in a process of its own; the driver asks for `optimizer` alone.
    """
    own = os.environ | {"PYTHONPATH": os.environ["WORKERS_PATH"]}
    command = [sys.executable, "-W", "ignore", "-m", __name__, str(folder)]
    done = subprocess.run(command, env=own, stdout=subprocess.PIPE, text=True, check=True)
    return dict.fromkeys(json.loads(done.stdout.splitlines()[-1]))


def _print_common_state(folder: str) -> None:
    _imports()
    from megatron.core.dist_checkpointing import load_common_state_dict

    sys.stdout.write(f"{json.dumps([*load_common_state_dict(folder)])}\n")


def _imports() -> None:
    """megatron-core asks whether Transformer Engine is there; the bridge imports from it whatever the answer was."""
    load = torch.storage._load_from_bytes
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    sys.meta_path.append(Empty(UNUSED))
    on_cpu._import_engine_users()  # before the stand-in: megatron-core must not find it
    sys.meta_path.remove(absent)
    sys.meta_path.insert(0, Empty(ENGINE))  # before one that is installed: its layers need a GPU
    # megatron-core puts a loader of its own here, and a tensor pickled by this process then asks for megatron-core.
    torch.storage._load_from_bytes = load
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter

    # NeMo-RL's main branch asks for two names of a later megatron-core, for wrappers that are not used here.
    for name in ("FullyShardedDataParallelV1", "FullyShardedDataParallelV2"):
        vars(mcore_fsdp_adapter).setdefault(name, mcore_fsdp_adapter.FullyShardedDataParallel)


def _cuda() -> None:
    """Streams, events, memory and random states of a GPU; a host has none of them, and counts no bytes."""
    torch._dynamo.config.disable = True
    replaced = on_cpu._replacements()
    del replaced["set_device"]  # torch's compiler refuses two names for one function
    constant = {
        "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0,
        "reset_peak_memory_stats": None, "mem_get_info": (2**26, 2**26), "get_device_name": "none", "device_count": 1,
        "get_device_capability": (9, 0), "is_initialized": False, "manual_seed": None, "set_device": None,
        "_lazy_init": None,
    }  # fmt: skip
    replaced |= {name: lambda *args, value=value, **kwargs: value for name, value in constant.items()}
    for name, value in (replaced | {"current_device": _current_device}).items():
        setattr(torch.cuda, name, value)
    for name in ("range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, lambda *args: None)
    torch.nn.Module.cuda = lambda module, device=None: module  # type: ignore[method-assign]
    torch.Tensor.pin_memory = lambda tensor, *args, **kwargs: tensor.clone()  # type: ignore[method-assign]
    # NCCL needs GPUs; the groups are the same over gloo.
    init = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend=None, **more: init("gloo", **more)


def _current_device() -> Any:
    """The CPU; but NeMo-RL's worker asks whether it is the number that Ray gave it."""
    caller = Path(sys._getframe(1).f_code.co_filename).name
    return int(os.environ["LOCAL_RANK"]) if caller == "megatron_policy_worker.py" else torch.device("cpu")


#: Functions of torch and methods of its tensors that take a device.
FACTORIES = (
    "tensor", "as_tensor", "empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "ones_like", "full",
    "full_like", "rand", "randn", "randint", "arange", "linspace", "scalar_tensor",
)  # fmt: skip
METHODS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")


def _devices_everywhere() -> None:
    """No tensor on a GPU, in any thread.

    torch's own modes hold for the thread that entered them, and Ray makes an actor that has `async` methods in the
    thread of an event loop.
    """
    torch.utils._device._device_constructors()  # `with torch.device(...)` knows them by identity, from its first use on
    for owner, names in ((torch, FACTORIES), (torch.Tensor, METHODS)):
        for name in names:
            setattr(owner, name, _on_cpu(getattr(owner, name)))
    to, kind = torch.Tensor.to, torch.Tensor.type

    def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return to(tensor, *("cpu" if str(value).startswith("cuda") else value for value in args), **kwargs)

    def type_of(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Megatron's optimizer asks for the name of the type, and knows those of CUDA."""
        found = kind(tensor, *args, **kwargs)
        return found.replace("torch.", "torch.cuda.") if isinstance(found, str) else found

    torch.Tensor.to, torch.Tensor.type = moved, type_of  # type: ignore[method-assign]
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor  # type: ignore[method-assign]


def _on_cpu(function: Any) -> Any:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)

    return called


def _bridge() -> None:
    """The bridge's start asks for CUDA and seeds its generators; its writer of checkpoints starts a server process."""
    from megatron.bridge.peft import module_matcher, utils
    from megatron.bridge.training import initialize
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import torch_norm

    from tests.nemo import tiny_qwen3

    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda *args, **kwargs: None

    def seed(*args: Any, **kwargs: Any) -> None:
        KEPT.enter_context(on_cpu._random_states())  # again: NeMo-RL takes the state of its conversion down

    seed()
    KEPT.enter_context(on_cpu._experts())
    initialize._set_random_seed = seed
    initialize.torch = _Seeming(torch)
    initialize.compile_helpers = lambda: None  # needs a Makefile that the wheel has not
    filesystem_async._results_queue = queue.Queue()
    for module in (module_matcher, utils):  # adapters take mocks of Transformer Engine's classes for the classes
        for name in [name for name in vars(module) if name.startswith("HAVE_TE")]:
            setattr(module, name, False)
    torch_norm.WrappedTorchNorm.__new__ = tiny_qwen3.plain_norm  # Megatron's own refuses sequence parallelism


def _layers() -> None:
    """megatron-core's own layers wherever the bridge asks for Transformer Engine's.

    Their attention knows no packing; ours does. The bridge knows no names for their norms; our conversion adds them.
    """
    from megatron.bridge.models import gpt_provider

    from nemo_uecr.conversion.bridge import _name_the_norms, layer_spec
    from tests.nemo.tiny_qwen3 import PackedAttention

    def spec(config: Any, *args: Any, **kwargs: Any) -> Any:
        found = layer_spec(config.num_moe_experts or 0)
        found.submodules.self_attention.submodules.core_attention = PackedAttention
        return found

    gpt_provider.transformer_engine_layer_spec = spec
    _name_the_norms()
    from megatron.bridge.models.qwen.qwen3_moe_bridge import Qwen3MoEBridge

    provided = Qwen3MoEBridge.provider_bridge

    def unfused(bridge: Any, pretrained: Any) -> Any:
        """NeMo-RL's conversion takes the bridge's own settings, which ask for Transformer Engine's fusions."""
        found = provided(bridge, pretrained)
        found.moe_grouped_gemm = found.moe_permute_fusion = False
        return found

    Qwen3MoEBridge.provider_bridge = unfused


def _optimizer() -> None:
    """Megatron's optimizer cannot be loaded around torch's Adam, which keeps its step in a state that is not there yet.

    Transformer Engine's keeps it in the group. The state that torch would make in the first step is made before.
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    state_dict = DistributedOptimizer.state_dict

    def with_state(optimizer: Any) -> Any:
        adam = optimizer.optimizer
        if not adam.state:
            for weight in (weight for group in adam.param_groups for weight in group["params"]):
                moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                adam.state[weight] = {"step": torch.tensor(0.0), **moments}
        return state_dict(optimizer)

    DistributedOptimizer.state_dict = with_state


def gpu_name(rank: int) -> str:
    """Trainer and generator find each other's socket by the name of their GPU: here the student's rank."""
    return f"cpu-{os.environ['WORKERS_ON_CPU']}-{rank}"


def _nvml() -> None:
    from nemo_rl.utils import nvml

    nvml.get_device_uuid = lambda index: gpu_name(int(os.environ["RANK"]))
    nvml.get_free_memory_bytes = lambda index: 2**24  # a refit takes a share of it as its buffer
    nvml.log_gpu_memory_diagnostics = lambda **given: None


def without_fusions(policy: dict[str, Any]) -> None:
    """Switch off, in NeMo-RL's section, what needs Transformer Engine, Triton or a package for GPUs."""
    megatron = policy["megatron_cfg"]
    megatron |= {"apply_rope_fusion": False, "bias_activation_fusion": False}
    megatron |= {"moe_permute_fusion": False, "moe_grouped_gemm": False}
    megatron["optimizer"]["use_precision_aware_optimizer"] = False
    if "checkpoint" in megatron:  # of the main branch; it asks for nvidia-resiliency-ext
        megatron["checkpoint"]["async_save"] = False


def vllm_worker(module: Any) -> None:
    """After a process imports NeMo-RL's vLLM worker: before it loads its model, in that process alone."""
    kind = module.VllmGenerationWorker.__ray_metadata__.modified_class
    base = next(each for each in kind.__mro__ if "_load_model" in vars(each))
    load_model = base._load_model

    def load(worker: Any, *args: Any, **kwargs: Any) -> Any:
        _vllm()
        return load_model(worker, *args, **kwargs)

    base._load_model = load


def _vllm() -> None:
    from nemo_rl.models.generation.vllm import vllm_backend
    from nemo_rl.utils import nvml
    from torch.multiprocessing.reductions import rebuild_tensor
    from vllm.model_executor.layers import linear, utils, vocab_parallel_embedding
    from vllm.model_executor.layers.fused_moe import layer
    from vllm.platforms import current_platform

    type(current_platform).is_sleep_mode_available = lambda self: True  # its sleep then says that it frees nothing
    for name in ("range_push", "range_pop"):
        setattr(torch.cuda.nvtx, name, lambda *args: None)
    torch.cuda.current_stream = on_cpu._Idle
    torch.cuda.get_device_capability, torch.cuda.current_device = (lambda *args: (9, 0)), (lambda: 0)
    nvml.get_device_uuid = lambda index: gpu_name(index or 0)
    # Weights come through shared memory of the host, not of a GPU.
    vllm_backend.rebuild_cuda_tensor_from_ipc = lambda handle, index: rebuild_tensor(*handle[0])

    def plain(module: Any, remove_weight: bool) -> None:
        """On a CPU vLLM packs its weights and drops them: a refit would find none."""
        module.cpu_linear = torch.nn.functional.linear

    for owner in (linear, utils, vocab_parallel_embedding):
        owner.dispatch_cpu_unquantized_gemm = plain
    # vLLM's worker has got a method by the name of one of NeMo-RL's extension, which is of a refit that is not used.
    extension = vllm_backend.VllmInternalWorkerExtension
    if "synchronize_device" in vars(extension):
        del extension.synchronize_device
    if not hasattr(layer, "FusedMoE"):  # gone since the vLLM that NeMo-RL pins, which patches it
        layer.FusedMoE = type("FusedMoE", (torch.nn.Module,), {})


# Modules that are not there.


class _Absent(importlib.abc.MetaPathFinder):
    """Says that Transformer Engine is not installed."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname.split(".")[0] in ENGINE:
            raise ModuleNotFoundError(f"no {fullname} on a CPU", name=fullname)


class Empty(on_cpu._StandIn):
    """Packages that are not installed, as empty ones; last on the path, so that one that is installed is found."""

    def create_module(self, spec: Any) -> Any:
        return (_Triton if spec.name.startswith("triton") else on_cpu._EmptyModule)(spec.name)


class _Triton(types.ModuleType):
    """Kernels that nobody runs: decorators with and without arguments, types and constants."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper() or name == "constexpr":
            return type(name, (), {"__init__": lambda *given, **options: None})
        return _decorator


def _decorator(*given: Any, **options: Any) -> Any:
    return given[0] if len(given) == 1 and callable(given[0]) and not options else lambda function: function


class _Seeming:
    """torch, which says that CUDA is there: the bridge asks once, at its start."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        if name == "is_available":
            return lambda: True
        return _Seeming(self._real.cuda) if name == "cuda" else getattr(self._real, name)


if __name__ == "__main__":
    _print_common_state(sys.argv[1])
