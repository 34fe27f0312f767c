"""Micro-batch columns to the worker's answer, and from the last pipeline stage to all.

Shape legend: B = responses of the worker, b = of a micro-batch, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Columns with one entry a response, not one a token.
OF_ROWS = ("row_hash", "witness")


def joined(parts: Sequence[dict[str, Tensor]], width: int) -> dict[str, Tensor]:
    """Columns of all micro-batches in their order; those over tokens, [b, S], padded with 0 to ``width`` tokens."""
    return {
        name: torch.cat([part[name] if name in OF_ROWS else _padded(part[name], width) for part in parts])
        for name in parts[0]
    }


def _padded(column_bS: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(column_bS, (0, width - column_bS.shape[1]))


def from_last_stage(columns: dict[str, Tensor] | None, group: dist.ProcessGroup, device: torch.device) -> Any:
    """The last stage's columns on every stage of the pipeline, on the CPU.

    Args:
        columns: on the last stage its columns, elsewhere None.
        group: the pipeline's ranks in stage order.
        device: where the group's collectives work.
    """
    last = dist.get_global_rank(group, dist.get_world_size(group) - 1)
    shapes: list[Any] = [
        None if columns is None else {name: (value.shape, value.dtype) for name, value in columns.items()}
    ]
    dist.broadcast_object_list(shapes, src=last, group=group, device=device)
    answer = {}
    for name, (shape, dtype) in shapes[0].items():
        column = (
            torch.empty(shape, dtype=dtype, device=device) if columns is None else columns[name].to(device).contiguous()
        )
        dist.broadcast(column, src=last, group=group)
        answer[name] = column.cpu()
    return answer
