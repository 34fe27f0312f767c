"""The worker's scoring and offloading, over whatever runs the forward; testable without Ray.

Shape legend: B = responses of the worker, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from nemo_uecr.errors import UecrError
from nemo_uecr.megatron_worker.columns import ModelParallel, score_columns
from nemo_uecr.megatron_worker.gather import from_last_stage, joined
from nemo_uecr.megatron_worker.layout import MicroBatch
from nemo_uecr.megatron_worker.request import ScoreRequest

#: From one micro-batch's logits to its columns.
Columns = Callable[[Tensor, MicroBatch], dict[str, Tensor]]
MEBI, GIB = 1_048_576, 2**30
#: Bytes at whose multiples each parameter of a host copy begins.
ALIGNMENT = 64


class OffloadError(UecrError, RuntimeError):
    """A model that should be off the GPU still holds memory there."""


class Forward(Protocol):
    """Runs the model over a batch without gradient and calls ``columns`` on each micro-batch's raw logits."""

    def __call__(self, data: Mapping[str, Any], columns: Columns) -> list[dict[str, Tensor]]:
        """The columns of every micro-batch in order; empty on all pipeline stages but the last."""


def score_tokens(
    forward: Forward,
    data: Mapping[str, Any],
    request: ScoreRequest,
    parallel: ModelParallel,
    *,
    pipeline: dist.ProcessGroup | None,
    device: torch.device,
) -> dict[str, Any]:
    """Answer a request from one forward: the same answer on every rank of a model-parallel group.

    Args:
        forward: runs the model.
        data: ``input_ids`` [B, S] and ``input_lengths`` [B].
        request: what is asked.
        parallel: tensor and context groups.
        pipeline: pipeline group in stage order, None for one stage.
        device: where collectives work.

    Returns:
        [B, S] columns on the CPU, ``row_hash`` [B] and ``witness`` [B, 2 K + 2] of what the forward saw, and ``terms``,
        one text a row: the score contract.
    """

    def columns(logits: Tensor, micro: MicroBatch) -> dict[str, Tensor]:
        return score_columns(logits, micro, request, parallel)

    with torch.no_grad():
        parts = forward(data, columns)
    ids_BS = data["input_ids"]
    answer: dict[str, Any] = joined(parts, ids_BS.shape[1]) if parts else {}
    if pipeline is not None:
        answer = from_last_stage(answer or None, pipeline, device)
    answer["terms"] = [request.terms] * ids_BS.shape[0]
    return answer


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

    Weights only travel to the device. Going back, the parameters become the host copy again and nothing is copied.
    Loading a state dict would keep the parameters where they are: `load_state_dict` writes in place.
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


def clear_forward_caches(model: torch.nn.Module) -> None:
    """Forget what modules remember of their forwards: Megatron's rotary embedding keeps one table for each length.

    A cached method belongs to the class, so that its cache also holds the tables of other models in this process; they
    are computed again when needed.
    """
    for kind in {type(module) for module in model.modules()}:
        for name in dir(kind):
            clear = getattr(getattr(kind, name, None), "cache_clear", None)
            if clear is not None:
                clear()


def check_released(allocated: int, baseline: int, *, limit_mebi: int, who: str) -> None:
    """Refuse a teacher whose offload does not give its memory back.

    Args:
        allocated: bytes on the GPU after the offload.
        baseline: bytes that the worker held beside the model's weights once it was built.
        limit_mebi: allowed difference.
        who: the model, for the message.

    Raises:
        OffloadError: when more than the limit stayed.
    """
    kept = (allocated - baseline) / MEBI
    if kept > limit_mebi:
        raise OffloadError(
            f"{who} still holds {kept:.0f} MiB on the GPU after its offload; expected at most {limit_mebi} MiB. It "
            "would take the memory that the student and the generator need"
        )


def check_room(free: int, held: int, total: int, *, share: float) -> None:
    """Refuse to wake vLLM on a GPU that has too little memory for it.

    Args:
        free: bytes that the device says are free, whoever holds the others.
        held: bytes of the student's weights, which leave before vLLM's cache wakes.
        total: bytes of the device.
        share: what vLLM takes of the device.

    Raises:
        OffloadError: when vLLM would run out of memory.
    """
    room = free + held
    if room < share * total:
        raise OffloadError(
            f"vLLM is about to wake and take {share * total / GIB:.1f} GiB (rollout.gpu_memory={share:g} of "
            f"{total / GIB:.1f}), but the GPU has {room / GIB:.1f} GiB for it; take rollout.gpu_memory="
            f"{math.floor(100 * room / total) / 100:g} or end what else runs on this GPU"
        )


@torch.no_grad()
def mask_padded_vocabulary(logits: Tensor, first_column: int, vocabulary: int) -> Tensor:
    """Take all probability from the padding columns of a vocabulary shard, in place, for training and scoring alike.

    Autograd does not see the write: it would clone the gradient of all logits to clear a few columns. Their gradient
    is 0 without that, as a column at -inf has no probability.
    """
    real = max(0, vocabulary - first_column)
    if real < logits.shape[-1]:
        logits[..., real:] = -torch.inf
    return logits
