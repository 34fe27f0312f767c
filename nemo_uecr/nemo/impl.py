"""The worker's scoring and offloading, over whatever runs the forward; testable without Ray.

Shape legend: B = responses of the worker, b = of a micro-batch, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from nemo_uecr.nemo.columns import ModelParallel, score_columns
from nemo_uecr.nemo.layout import MicroBatch
from nemo_uecr.nemo.request import ScoreRequest

#: From one micro-batch's logits to its columns.
Columns = Callable[[Tensor, MicroBatch], dict[str, Tensor]]
#: Columns with one entry a response, not one a token.
OF_ROWS = ("row_hash", "witness")
#: Bytes at whose multiples each parameter of a host copy begins.
ALIGNMENT = 64


class Forward(Protocol):
    """Runs the model over a batch without gradient and calls ``columns`` on each micro-batch's raw logits."""

    def __call__(self, data: Mapping[str, Any], columns: Columns) -> list[dict[str, Tensor]]:
        """The columns of every micro-batch in order; empty on all pipeline stages but the last."""


def score_tokens(
    forward: Forward,
    data: Mapping[str, Any],
    request: ScoreRequest,
    parallel: ModelParallel,
) -> dict[str, Any] | None:
    """Answer a request from one forward: the same answer on every rank of the last stage, None on earlier ones.

    Args:
        forward: runs the model.
        data: ``input_ids`` [B, S] and ``input_lengths`` [B].
        request: what is asked.
        parallel: tensor and context groups.

    Returns:
        [B, S] columns on the CPU, ``row_hash`` [B] and ``witness`` [B, 2 K + 2] of what the forward saw, and ``terms``,
        one text a row: the score contract.
    """

    def columns(logits: Tensor, micro: MicroBatch) -> dict[str, Tensor]:
        return score_columns(logits, micro, request, parallel)

    with torch.no_grad():
        parts = forward(data, columns)
    if not parts:
        return None
    rows, width = data["input_ids"].shape
    answer: dict[str, Any] = {name: torch.cat([part[name] for part in parts]) for name in OF_ROWS}
    for name in request.columns:
        padded = [torch.nn.functional.pad(part[name], (0, width - part[name].shape[1])) for part in parts]
        answer[name] = torch.cat(padded)
    answer["terms"] = [request.terms] * rows
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
