"""What our Megatron worker adds to NeMo-RL's, as a mix-in over its Impl class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from nemo_uecr.megatron_worker.columns import ModelParallel
from nemo_uecr.megatron_worker.impl import (
    check_released,
    check_room,
    clear_forward_caches,
    host_copy,
    mask_padded_vocabulary,
    move_frozen_model,
    score_tokens,
)
from nemo_uecr.megatron_worker.request import ScoreRequest
from nemo_uecr.nemo_adapter import megatron_forward, megatron_state, upstream


class WorkerMethods:
    """Scoring at any temperatures, an offload that frees, and log-probabilities without generation's filter."""

    cfg: Mapping[str, Any]
    model: torch.nn.Module

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build NeMo-RL's worker, measure what it holds beside its model, and correct its sampling parameters."""
        self._host_copy: list[torch.Tensor] = []
        super().__init__(*args, **kwargs)
        held = (*self.model.parameters(), *self.model.buffers())
        self._baseline = self.gpu_memory() - sum(tensor.nbytes for tensor in held)
        options = self.cfg["uecr"]
        if options["filters"] == "paper":
            self.sampling_params = upstream.temperature_only(options["temperature"])
        if not megatron_state.model_parallel_groups().last_stage:
            # NeMo-RL divides the output of every pipeline stage by the temperature: hidden states, on all but the last.
            self.sampling_params = None
        self._vocabulary = int(options["vocabulary"])
        self._hook_padded_vocabulary()

    def score_tokens(self, *, data: Any, request: ScoreRequest) -> Any:
        """The columns of the request for this worker's rows; None on all of its model-parallel ranks but one."""
        self.model.eval()
        groups = megatron_state.model_parallel_groups()
        answer = score_tokens(
            megatron_forward.MegatronForward(self),
            data,
            request,
            ModelParallel(groups.tensor, groups.context),
            pipeline=groups.pipeline,
            device=torch.device("cuda", torch.cuda.current_device()),
        )
        return type(data)(answer) if groups.answers else None

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
        """An error when more than the limit stayed on the GPU after an offload."""
        who = f"the model {self.cfg['model_name']}"
        check_released(self.gpu_memory(), self._baseline, limit_mebi=limit_mebi, who=who)

    def assert_room(self, *, share: float) -> None:
        """An error when the GPU has too little memory for vLLM to wake."""
        free, total = torch.cuda.mem_get_info()
        check_room(free, self.gpu_memory(), total, share=share)

    def gpu_memory(self) -> int:
        """Bytes allocated on this worker's GPU."""
        return int(torch.cuda.memory_allocated())

    def _hook_padded_vocabulary(self) -> None:
        groups = megatron_state.model_parallel_groups()
        if not groups.last_stage:
            return

        def mask(module: torch.nn.Module, args: Any, output: Any) -> Any:
            if isinstance(output, torch.Tensor) and output.dim() == 3:
                return mask_padded_vocabulary(output, groups.tensor_rank * output.shape[-1], self._vocabulary)
            return output

        self.model.register_forward_hook(mask)
