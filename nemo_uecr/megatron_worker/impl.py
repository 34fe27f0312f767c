"""The worker's scoring and offloading, over whatever runs the forward; testable without Ray.

Shape legend: B = responses of the worker, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
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
MEBI = 1_048_576


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


def move_plain_model(model: torch.nn.Module, device: str) -> None:
    """Move a model that no data-parallel wrapper owns; the memory it leaves is given back.

    Copying a state dict into the parameters would keep them where they are: `load_state_dict` writes in place.
    """
    model.to(device)
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
        baseline: bytes before the model was loaded.
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


def mask_padded_vocabulary(logits: Tensor, first_column: int, vocabulary: int) -> Tensor:
    """Take all probability from the padding columns of a vocabulary shard, in place, for training and scoring alike."""
    real = max(0, vocabulary - first_column)
    if real < logits.shape[-1]:
        logits[..., real:] = -torch.inf
    return logits
