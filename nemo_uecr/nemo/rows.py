"""Masked rows that round a batch up to a multiple; they exist only on the way to a worker and back.

Shape legend: B = responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def padding_rows(rows: int, multiple: int) -> int:
    """How many masked rows make ``rows`` a multiple of ``multiple``."""
    return -rows % multiple


def with_masked_rows(columns: Mapping[str, Any], extra: int) -> dict[str, Any]:
    """The columns with ``extra`` rows at the end: one padding token each, every mask 0.

    Tensors are extended by zeros, lists by None; a length becomes 1, because no layout knows an empty sequence.
    """
    if extra == 0:
        return dict(columns)
    return {name: _extended(name, value, extra) for name, value in columns.items()}


def without_masked_rows(columns: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """The first ``rows`` rows of every column."""
    return {name: value[:rows] for name, value in columns.items()}


def _extended(name: str, value: Any, extra: int) -> Any:
    if not isinstance(value, Tensor):
        return [*value, *([None] * extra)]
    fill = torch.zeros((extra, *value.shape[1:]), dtype=value.dtype, device=value.device)
    if name == "input_lengths":
        fill += 1
    return torch.cat((value, fill))
