"""What our Megatron worker adds to NeMo-RL's, as a mix-in over its Impl class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from nemo_uecr.nemo import megatron_forward, megatron_state, upstream
from nemo_uecr.nemo.errors import GpuMemoryError
from nemo_uecr.nemo.impl import (
    clear_forward_caches,
    host_copy,
    mask_padded_vocabulary,
    move_frozen_model,
    score_tokens,
)
from nemo_uecr.nemo.request import ScoreRequest

MEBI, GIB = 2**20, 2**30


class WorkerMethods:
    """Scoring at any temperatures, an offload that frees, and log-probabilities without generation's filter."""

    cfg: Mapping[str, Any]
    model: torch.nn.Module

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build NeMo-RL's worker, measure what it holds beside its model, and correct its sampling parameters."""
        self._host_copy: list[torch.Tensor] = []
        super().__init__(*args, **kwargs)
        held = (*self.model.parameters(), *self.model.buffers())
        self._baseline = torch.cuda.memory_allocated() - sum(tensor.nbytes for tensor in held)
        options = self.cfg["uecr"]
        if options["filters"] == "paper":
            self.sampling_params = upstream.temperature_only(options["temperature"])
        if not megatron_state.last_stage():
            # NeMo-RL divides the output of every pipeline stage by the temperature: hidden states, on all but the last.
            self.sampling_params = None
        self._vocabulary = int(options["vocabulary"])
        self._hook_padded_vocabulary()

    def score_tokens(self, *, data: Any, request: ScoreRequest) -> Any:
        """The columns of the request for this worker's rows; None on all of its model-parallel ranks but one."""
        self.model.eval()
        parallel = megatron_state.model_parallel()
        answer = score_tokens(megatron_forward.MegatronForward(self), data, request, parallel)
        first = parallel.tensor_rank == parallel.context_rank == 0
        return type(data)(answer) if answer is not None and first else None

    def move_model(
        self, model: torch.nn.Module, device: str, move_params: bool = True, move_grads: bool = True
    ) -> torch.nn.Module:
        """NeMo-RL's own for wrapped models; a plain one is frozen and really moved, so that its memory is freed."""
        megatron_state.free_gathered()
        if megatron_state.is_wrapped(model):
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

    def assert_room(self, *, share: float) -> None:
        """Refuse to wake vLLM where this share of the GPU is not free, whoever holds the rest.

        The student's weights do not count: they leave before vLLM's cache wakes.
        """
        free, total = torch.cuda.mem_get_info()
        room = free + torch.cuda.memory_allocated()
        if room < share * total:
            raise GpuMemoryError(
                f"vLLM is about to wake and take {share * total / GIB:.1f} GiB (rollout.gpu_memory={share:g} of "
                f"{total / GIB:.1f}), but the GPU has {room / GIB:.1f} GiB for it; take rollout.gpu_memory="
                f"{math.floor(100 * room / total) / 100:g} or end what else runs on this GPU"
            )

    def _hook_padded_vocabulary(self) -> None:
        if not megatron_state.last_stage():
            return
        tensor_rank = megatron_state.model_parallel().tensor_rank

        def mask(module: torch.nn.Module, args: Any, output: Any) -> Any:
            if isinstance(output, torch.Tensor) and output.dim() == 3:
                return mask_padded_vocabulary(output, tensor_rank * output.shape[-1], self._vocabulary)
            return output

        self.model.register_forward_hook(mask)
