"""Checks of the arguments of a scoring call; every failure is one clear line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nemo_uecr.scoring.errors import ScoringInputError
from nemo_uecr.scoring.records import StatisticsLayout

SCORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TARGET_DTYPES = (torch.int64, torch.int32)


def check_tokens(name: str, rows: Tensor, target_N: Tensor) -> None:
    """Check the `[N, *]` float tensor `rows` (logits or hidden states) against the `[N]` integer targets."""
    if rows.dim() != 2:
        raise ScoringInputError(
            f"{name} has shape {tuple(rows.shape)}, expected two dimensions; flatten the tokens first"
        )
    if rows.dtype not in SCORED_DTYPES:
        raise ScoringInputError(f"{name} is {rows.dtype}, expected float32, bfloat16 or float16")
    if target_N.dim() != 1 or target_N.shape[0] != rows.shape[0]:
        raise ScoringInputError(
            f"target_N has shape {tuple(target_N.shape)}, expected ({rows.shape[0]},): one token id a row of {name}"
        )
    if target_N.dtype not in TARGET_DTYPES:
        raise ScoringInputError(f"target_N is {target_N.dtype}, expected int64 or int32 token ids")
    if target_N.device != rows.device:
        raise ScoringInputError(f"target_N is on {target_N.device} but {name} on {rows.device}; move one of them")
    if rows.shape[0] == 0:
        raise ScoringInputError(f"{name} holds no token; leave out the call when there is nothing to score")


def check_weight(hidden_NH: Tensor, weight_VH: Tensor, logits_dtype: torch.dtype | None) -> None:
    """Check the output weight and the precision of the logits against the hidden states."""
    if weight_VH.dim() != 2 or weight_VH.shape[1] != hidden_NH.shape[1]:
        raise ScoringInputError(
            f"weight_VH has shape {tuple(weight_VH.shape)}, expected (vocabulary, {hidden_NH.shape[1]}) "
            "to match the hidden states"
        )
    if weight_VH.dtype != hidden_NH.dtype:
        raise ScoringInputError(f"weight_VH is {weight_VH.dtype} but hidden_NH {hidden_NH.dtype}; cast one of them")
    if weight_VH.device != hidden_NH.device:
        raise ScoringInputError(f"weight_VH is on {weight_VH.device} but hidden_NH on {hidden_NH.device}")
    if logits_dtype not in (None, hidden_NH.dtype, torch.float32):
        raise ScoringInputError(f"logits_dtype is {logits_dtype}, expected None, {hidden_NH.dtype} or float32")


def check_vocab(columns: int, valid_vocab: int | None) -> int:
    """Return the number of real vocabulary columns among `columns`; the rest is padding."""
    if columns == 0:
        raise ScoringInputError("the vocabulary has no column, expected at least one")
    if valid_vocab is None:
        return columns
    if not 1 <= valid_vocab <= columns:
        raise ScoringInputError(f"valid_vocab is {valid_vocab}, expected 1 to {columns}, the number of columns")
    return valid_vocab


def check_shard(first_column: int, valid_vocab: int | None) -> None:
    """Check the place of a vocabulary shard as far as one rank can."""
    if first_column < 0:
        raise ScoringInputError(f"first_column is {first_column}, expected the token id of the shard's column 0")
    if valid_vocab is not None and valid_vocab < 1:
        raise ScoringInputError(f"valid_vocab is {valid_vocab}, expected at least 1")


def statistics_layout(temperatures: tuple[float, ...], entropy: bool) -> StatisticsLayout:
    """Check the temperatures and return the layout of the statistics they need."""
    if not temperatures and not entropy:
        raise ScoringInputError("nothing is asked: give at least one temperature, or ask for the entropy")
    for temperature in temperatures:
        if not (math.isfinite(temperature) and temperature > 0.0):
            raise ScoringInputError(f"temperature is {temperature}, expected a finite number above 0")
    return StatisticsLayout(tuple(float(t) for t in temperatures), entropy)
