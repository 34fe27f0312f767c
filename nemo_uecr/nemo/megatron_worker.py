"""What our Megatron worker adds to NeMo-RL's, as a mix-in over its Impl class; `ray_worker` makes the Ray actor."""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.errors import UecrError
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.worker_scoring import ModelParallel, ScoreRequest, score_tokens

MEBI, GIB = 2**20, 2**30
#: The recipe's key of vLLM's share of a GPU.
VLLM_SHARE = "policy.generation.vllm_cfg.gpu_memory_utilization"
#: Bytes at whose multiples each parameter of a host copy begins.
ALIGNMENT = 64


class GpuMemoryError(UecrError, RuntimeError):
    """A worker holds more of its GPU's memory, or finds less of it free, than the next part of the step allows."""


class WorkerMethods:
    """Scoring at any temperatures, an offload that frees, and log-probabilities without generation's filter."""

    cfg: Mapping[str, Any]
    model: torch.nn.Module

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build NeMo-RL's worker, measure what it holds beside its model, and correct its sampling parameters."""
        self._host_copy: list[Tensor] = []
        super().__init__(*args, **kwargs)
        # The module's own method: Megatron's data-parallel wrapper has an attribute of that name, its gradient buffers.
        held = (*self.model.parameters(), *torch.nn.Module.buffers(self.model))
        self._baseline = torch.cuda.memory_allocated() - sum(tensor.nbytes for tensor in held)
        options = self.cfg["uecr"]
        if options["filters"] == "paper":
            self.sampling_params = upstream.temperature_only(options["temperature"])
        if last_stage():
            self._mask_padded_vocabulary(int(options["vocabulary"]))
        else:
            # NeMo-RL divides the output of every pipeline stage by the temperature: hidden states, on all but the last.
            self.sampling_params = None

    def _pre_load_checkpoint_hook(self, state: Any, model: Any) -> None:
        """NeMo-RL calls it before it loads weights, and sets a training's functions only after that."""
        forget_training(model[0])

    def score_tokens(self, *, data: Any, request: ScoreRequest) -> Any:
        """The columns of the request for this worker's rows; None on all of its model-parallel ranks but one."""
        self.model.eval()
        parallel = model_parallel()
        answer = score_tokens(functools.partial(upstream.score_forward, self), data, request, parallel)
        first = all(group is None or group.rank() == 0 for group in parallel)
        return type(data)(answer) if answer is not None and first else None

    def move_model(
        self, model: torch.nn.Module, device: str, move_params: bool = True, move_grads: bool = True
    ) -> torch.nn.Module:
        """NeMo-RL's own for wrapped models; a plain one is frozen and really moved, so that its memory is freed."""
        free_gathered()
        if is_wrapped(model):
            moved: torch.nn.Module = super().move_model(model, device, move_params, move_grads)  # type: ignore[misc]
            clear_forward_caches(moved)
            return moved
        if move_params:
            self._host_copy = self._host_copy or host_copy(model)
            move_frozen_model(model, device, self._host_copy)
        return model

    def assert_offloaded(self, *, limit_mebi: int) -> None:
        """Refuse an offload that leaves more than the limit on the GPU, beside what the worker held without weights."""
        kept = (torch.cuda.memory_allocated() - self._baseline) / MEBI
        if kept > limit_mebi:
            raise GpuMemoryError(
                f"the model {self.cfg['model_name']} still holds {kept:.0f} MiB on the GPU after its offload; expected "
                f"at most {limit_mebi} MiB. It would take the memory that the student and the generator need"
            )

    def assert_room(self, *, share: float, waking: bool) -> None:
        """Refuse to wake vLLM, or to score after its sleep, where this share of the GPU is not free.

        Whoever holds the rest; the student's weights do not count: they leave before vLLM's cache wakes.
        """
        free, total = torch.cuda.mem_get_info()
        room = free + torch.cuda.memory_allocated()
        if room < share * total:
            least = math.floor(100 * room / total) / 100
            does, remedy = "is about to wake and take", f"take {VLLM_SHARE}={least:g} or"
            if not waking:  # NeMo-RL goes on where vLLM's sleep fails, and a teacher would run out of memory
                does, remedy = "was put to sleep and should have given back", "look for an error in vLLM's log, or"
            raise GpuMemoryError(
                f"vLLM {does} {share * total / GIB:.1f} GiB ({VLLM_SHARE}={share:g} of {total / GIB:.1f}), but "
                f"the GPU has {room / GIB:.1f} GiB for it; {remedy} end what else runs on this GPU"
            )

    def _mask_padded_vocabulary(self, vocabulary: int) -> None:
        """Take all probability from the padding columns, for training and scoring alike."""
        group = model_parallel().tensor
        rank = 0 if group is None else group.rank()

        def mask(module: torch.nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.dim() == 3:
                mask_padding(output, rank * output.shape[-1], vocabulary)

        self.model.register_forward_hook(mask)


@torch.no_grad()
def mask_padding(logits: Tensor, first_column: int, vocabulary: int) -> Tensor:
    """-inf in the padding columns of a vocabulary shard, in place.

    Autograd does not see the write: it would clone the gradient of all logits to clear a few columns. Their gradient
    is 0 without that, as a column at -inf has no probability.
    """
    logits[..., max(0, vocabulary - first_column) :] = -torch.inf
    return logits


def model_parallel() -> ModelParallel:
    """The groups that Megatron set up."""
    from megatron.core import parallel_state as state

    groups = state.get_tensor_model_parallel_group(), state.get_context_parallel_group()
    return ModelParallel(*(group if group.size() > 1 else None for group in groups))


def last_stage() -> bool:
    """Whether this rank holds the end of the model, and so its logits."""
    from megatron.core import parallel_state as state

    return bool(state.is_pipeline_last_stage(ignore_virtual=True))


#: Functions in Megatron's configuration of a model that belong to its data-parallel wrapper and optimizer.
OF_TRAINING = ("no_sync_func", "grad_sync_func", "param_sync_func", "grad_scale_func", "finalize_model_grads_func")


def forget_training(model: Any) -> None:
    """Take the functions of a training from a model: a checkpoint of one brings their names with it.

    A frozen model would call them, and a student's set-up refuses to write its own over them.
    """
    from megatron.core.utils import get_model_config

    config = get_model_config(model)
    for name in OF_TRAINING:
        setattr(config, name, None)


def is_wrapped(model: Any) -> bool:
    """Whether Megatron's data-parallel wrapper owns the model's parameters."""
    from megatron.core.distributed import DistributedDataParallel

    return isinstance(model, DistributedDataParallel)


# The offload of a frozen teacher: its weights rest in one block of host memory. What else would stay on the GPU goes
# too: what modules and Megatron remember of their forwards, and torch's workspace. (`recipe` asks NeMo-RL to clear
# Transformer Engine's FP8 copies.)


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


#: What token dispatchers of megatron-core keep of their last forward: of probabilities alone 8 bytes for each token,
#: layer and expert, 1 GiB of Qwen3-30B-A3B after 18,432 tokens. The next forward makes all of them again.
OF_A_DISPATCH = (
    "probs", "routing_map", "tokens_per_expert", "reversed_local_input_permutation_mapping", "local_map", "local_probs",
    "num_global_tokens_per_local_expert", "token_probs", "token_indices", "dispatched_probs", "dispatched_indices",
    "dispatched_routing_map", "reversed_mapping_for_combine", "num_permuted_tokens",
)  # fmt: skip


def clear_forward_caches(model: torch.nn.Module) -> None:
    """Forget what modules remember of their forwards.

    Megatron's rotary embedding keeps one table for each length. A cached method belongs to the class, so that its cache
    also holds the tables of other models in this process; they are computed again when needed. The token dispatcher of
    a layer with experts keeps where each token went; it is no module, so that moving the model does not reach it.
    """
    for module in model.modules():
        dispatcher = getattr(module, "token_dispatcher", None)
        for owner in (dispatcher, getattr(dispatcher, "_comm_manager", None)):
            for name in OF_A_DISPATCH:
                if isinstance(getattr(owner, name, None), Tensor):
                    setattr(owner, name, None)
    for kind in {type(module) for module in model.modules()}:
        for name in dir(kind):
            clear = getattr(getattr(kind, name, None), "cache_clear", None)
            if clear is not None:
                clear()


def free_gathered() -> None:
    """Free the buffers that Megatron keeps in the process: a sequence-parallel output layer gathers into one."""
    from megatron.core.parallel_state import get_global_memory_buffer

    get_global_memory_buffer().buffer.clear()
