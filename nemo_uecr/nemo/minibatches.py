"""Mini-batches of the training batch, each rounded up with masked rows. Shape legend: B = responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.nemo.loss import FIRST_STEP_COLUMN
from nemo_uecr.nemo.rows import padding_rows, with_masked_rows


def padded_minibatches(columns: Mapping[str, Any], minibatch: int, rounding: int) -> tuple[dict[str, Any], int]:
    """The batch in its order, with masked rows at the end of each mini-batch where it does not divide.

    Args:
        columns: training columns, B rows.
        minibatch: responses of an optimizer step.
        rounding: rows that a mini-batch must be a multiple of.

    Returns:
        The columns with a mark on the rows of the first optimizer step, and the rows of one mini-batch.
    """
    rows = columns["input_ids"].shape[0]
    marked = dict(columns) | {FIRST_STEP_COLUMN: (torch.arange(rows) < minibatch).float()}
    whole = minibatch + padding_rows(minibatch, rounding)
    parts = []
    for start in range(0, rows, minibatch):
        part = {name: value[start : start + minibatch] for name, value in marked.items()}
        parts.append(with_masked_rows(part, whole - part["input_ids"].shape[0]))
    return {name: _joined([part[name] for part in parts]) for name in marked}, whole


def _joined(values: list[Any]) -> Any:
    if isinstance(values[0], Tensor):
        return values[0] if len(values) == 1 else torch.cat(values)
    return [item for value in values for item in value]
