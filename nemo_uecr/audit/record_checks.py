"""What must hold of step records and saved batches before a fact is read from them.

Shape legend: B = responses, T = tokens (padded).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from nemo_uecr.data.batch_file import load_batch
from nemo_uecr.errors import DataError

#: Beyond it a count is no count: whole numbers lose their last digit, and products their finiteness.
LARGEST = 1e15


def check_number(record: Mapping[str, Any], name: str, where: str, *, least: float) -> None:
    """Refuse a record whose value is absent, no number, or out of range.

    Raises:
        DataError: naming record and metric.
    """
    value = record.get(name)
    if not is_number(value, least=least):
        got = f"{name} = {str(value)[:30]}" if name in record else f"no {name}"
        raise DataError(f"{where} has {got}; expected a number from {least:g} to {LARGEST:g}")


def is_number(value: object, *, least: float) -> TypeGuard[float]:
    """Whether a value is a finite number in a range of which sums and products stay finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= LARGEST


def check_records(steps: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Refuse step records without a usable step number, or without one of the metrics.

    Raises:
        DataError: naming step and metric.
    """
    for place, step in enumerate(steps, start=1):
        number = step.get("step")
        if not isinstance(number, int) or not is_number(number, least=1):
            raise DataError(f"record {place} has step = {str(number)[:30]}; expected a whole number from 1")
        for name in names:
            check_number(step, name, f"step {number}", least=0)


def batch_arrays(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group [B], mask [B, T] and task reward [B] of a saved batch.

    Raises:
        DataError: If one of them has another shape or kind.
    """
    import torch

    tensors = load_batch(path).tensors
    group, mask, reward = tensors["group"], tensors["mask"], tensors["task_reward"]
    if group.dtype not in (torch.int64, torch.int32) or group.ndim != 1:
        raise DataError(f"{path}: group is {group.dtype} of shape {tuple(group.shape)}; expected int64 [B]")
    if mask.ndim != 2 or len(mask) != len(group) or not bool(((mask == 0) | (mask == 1)).all()):
        raise DataError(f"{path}: mask of shape {tuple(mask.shape)} is no mask [{len(group)}, T]; expected bool")
    if reward.shape != group.shape or reward.is_complex():
        shape = tuple(reward.shape)
        raise DataError(f"{path}: task_reward is {reward.dtype} of shape {shape}; expected float [{len(group)}]")
    return group.numpy(), mask.bool().numpy(), reward.double().numpy()


def mean_reward(record: Mapping[str, Any] | None, where: str) -> float | None:
    """The mean reward of a step's record; None without a record.

    Raises:
        DataError: If the record has none.
    """
    if record is None:
        return None
    value = record.get("reward/task_mean")
    if not is_number(value, least=-LARGEST):
        raise DataError(f"{where} has reward/task_mean = {str(value)[:30]}; expected a number")
    return float(value)
