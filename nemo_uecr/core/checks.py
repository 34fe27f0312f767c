"""Checks of a batch: shapes and types when it is made, then empty responses and scores that are not finite.

Shape legend: B = responses, T = tokens, b x t = one block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nemo_uecr.core.layout import Block
from nemo_uecr.errors import ScoreError

if TYPE_CHECKING:
    from nemo_uecr.core.records import ScoredBatch

SCORE_DTYPES = (torch.float32, torch.float64)
#: Of indices and labels; torch has no arithmetic for its other integers.
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: Of rewards: nor has it any for floats of 8 bits.
REWARD_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def check_responses(batch: ScoredBatch) -> None:
    """Refuse rewards, groups and names that do not fit each other or that no method could use.

    Raises:
        ScoreError: naming the field.
    """
    if batch.task_reward_B.ndim != 1:
        raise ScoreError(f"task_reward has shape {list(batch.task_reward_B.shape)}; expected [B], one value a response")
    if batch.group_B.shape != batch.task_reward_B.shape:
        raise ScoreError(
            f"group has shape {list(batch.group_B.shape)}; expected [{batch.responses}], one value a response"
        )
    if batch.responses == 0:
        raise ScoreError("the batch has no responses; expected at least one group of two")
    if batch.group_B.dtype not in INTEGERS:
        raise ScoreError(f"group has dtype {batch.group_B.dtype}; expected integers (the prompt index)")
    if batch.task_reward_B.dtype not in REWARD_DTYPES:
        raise ScoreError(f"task_reward has dtype {batch.task_reward_B.dtype}; expected a float of 16 bits or more")
    unusable = (~batch.task_reward_B.isfinite()).nonzero()
    if unusable.numel():
        row = int(unusable[0])
        raise ScoreError(
            f"task_reward of {batch.name_of(row)} is {float(batch.task_reward_B[row])}; expected a finite number. "
            "One bad reward would spoil its whole group"
        )
    if batch.sample_ids is not None and len(batch.sample_ids) != batch.responses:
        raise ScoreError(f"{len(batch.sample_ids)} sample ids for {batch.responses} responses; expected one each")


def check_tokens(batch: ScoredBatch) -> None:
    """Refuse token fields of another shape or type than the mask and the old policy's scores.

    Raises:
        ScoreError: naming the field.
    """
    mask = batch.mask_BT
    if mask.dtype != torch.bool:
        raise ScoreError(f"mask has dtype {mask.dtype}; expected bool")
    if batch.offsets is None and (mask.ndim != 2 or mask.shape[0] != batch.responses):
        raise ScoreError(f"mask has shape {list(mask.shape)}; expected [{batch.responses}, T]")
    if batch.offsets is not None:
        _check_offsets(batch)
    for name in ("old_logp", "teacher_logp", "teacher_entropy", "initial_logp", "segments"):
        tensor = getattr(batch, f"{name}_BT")
        if tensor is None:
            continue
        if tensor.shape != mask.shape:
            raise ScoreError(f"{name} has shape {list(tensor.shape)}; expected {list(mask.shape)}, the shape of mask")
        if name == "segments":
            if tensor.dtype not in (*INTEGERS, torch.bool):
                raise ScoreError(f"segments has dtype {tensor.dtype}; expected integers (turn labels)")
        elif tensor.dtype not in SCORE_DTYPES or tensor.dtype != batch.old_logp_BT.dtype:
            raise ScoreError(
                f"{name} has dtype {tensor.dtype}; expected float32 (or float64 throughout), because bf16 scores "
                "lose the gap between teacher and student"
            )


def _check_offsets(batch: ScoredBatch) -> None:
    offsets, mask = batch.offsets, batch.mask_BT
    if offsets is None or mask.ndim != 1:
        raise ScoreError(f"a packed batch has shape {list(mask.shape)} for mask; expected [N]")
    if offsets.ndim != 1 or offsets.dtype not in INTEGERS:
        raise ScoreError(
            f"offsets has shape {list(offsets.shape)} and dtype {offsets.dtype}; expected integers "
            f"[{batch.responses + 1}]"
        )
    ends = offsets.tolist()
    if len(ends) != batch.responses + 1 or ends[0] != 0 or ends[-1] != mask.shape[0] or sorted(ends) != ends:
        raise ScoreError(
            f"offsets run {ends[:1]} to {ends[-1:]} in {len(ends)} values; expected {batch.responses + 1} "
            f"ascending values from 0 to {mask.shape[0]}"
        )


def token_counts(batch: ScoredBatch) -> Tensor:
    """[B] float64 number of sampled tokens, at least 1 each.

    Raises:
        ScoreError: If a response has none.
    """
    counts = torch.empty(batch.responses, dtype=torch.float64, device=batch.mask_BT.device)
    for block in batch.blocks:
        counts[block.rows] = block.of(batch.mask_BT).sum(dim=1).to(torch.float64)
    empty = (counts == 0).nonzero()
    if empty.numel():
        raise ScoreError(
            f"{batch.name_of(int(empty[0]))} has no sampled token; expected at least one (an immediate end token "
            "counts). Drop the prompt's whole group or sample it again"
        )
    return counts


def check_finite(batch: ScoredBatch, block: Block, row_sums_b: Tensor, fields: tuple[str, ...]) -> None:
    """Raise when a row sum is not finite, naming sample, position and field.

    A float64 sum of float32 values is finite exactly when every value is, so the usual case costs no extra pass.
    """
    if bool(row_sums_b.isfinite().all()):
        return
    mask = block.of(batch.mask_BT)
    for field in fields:
        bad = (~block.of(getattr(batch, f"{field}_BT")).isfinite() & mask).nonzero()
        if bad.numel():
            row, column = int(bad[0, 0]), int(bad[0, 1])
            value = float(block.of(getattr(batch, f"{field}_BT"))[row, column])
            first = block.index[1].start if isinstance(block.index, tuple) else 0
            raise ScoreError(
                f"{field} of {batch.name_of(block.rows.start + row)} at token {first + column} is {value}; expected a "
                "finite number of nats. Score the response again; scores are never filled in"
            )
    row = int((~row_sums_b.isfinite()).nonzero()[0])
    raise ScoreError(f"scores of {batch.name_of(block.rows.start + row)} overflow when summed; expected finite nats")
