"""Checks of the arguments of a scoring call; every failure is one clear line."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.scoring.errors import ScoringInputError
from nemo_uecr.scoring.records import StatisticsLayout

SCORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TARGET_DTYPES = (torch.int64, torch.int32)
PLAIN_CLASSES = (Tensor, torch.nn.Parameter)
LARGEST_INT = 1 << 62
"""Sums and differences of two such ints are int64."""
COLDEST, HOTTEST = 1e-30, 1e30
"""Between these a temperature and its inverse are ordinary float32 numbers."""


def check_tokens(name: str, rows: object, target_N: object) -> None:
    """Check the `[N, *]` float tensor `rows` (logits or hidden states) against the `[N]` integer targets."""
    rows, target_N = tensor(name, rows), tensor("target_N", target_N)
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


def check_weight(hidden_NH: Tensor, weight_VH: object, logits_dtype: object) -> None:
    """Check the output weight and the precision of the logits against the hidden states."""
    weight_VH = tensor("weight_VH", weight_VH)
    if weight_VH.dim() != 2 or weight_VH.shape[1] != hidden_NH.shape[1]:
        raise ScoringInputError(
            f"weight_VH has shape {tuple(weight_VH.shape)}, expected (vocabulary, {hidden_NH.shape[1]}) "
            "to match the hidden states"
        )
    if weight_VH.dtype != hidden_NH.dtype:
        raise ScoringInputError(f"weight_VH is {weight_VH.dtype} but hidden_NH {hidden_NH.dtype}; cast one of them")
    if weight_VH.device != hidden_NH.device:
        raise ScoringInputError(f"weight_VH is on {weight_VH.device} but hidden_NH on {hidden_NH.device}")
    if not (logits_dtype is None or logits_dtype is hidden_NH.dtype or logits_dtype is torch.float32):
        raise ScoringInputError(f"logits_dtype is {logits_dtype}, expected None, {hidden_NH.dtype} or float32")


def check_vocab(columns: int, valid_vocab: int | None) -> int:
    """Return the number of real vocabulary columns among `columns`; the rest is padding."""
    if columns == 0:
        raise ScoringInputError("the vocabulary has no column, expected at least one")
    if valid_vocab is None:
        return columns
    whole_number("valid_vocab", valid_vocab)
    if not 1 <= valid_vocab <= columns:
        raise ScoringInputError(f"valid_vocab is {valid_vocab}, expected 1 to {columns}, the number of columns")
    return valid_vocab


def check_shard(first_column: int, valid_vocab: int | None) -> None:
    """Check the place of a vocabulary shard as far as one rank can."""
    whole_number("first_column", first_column)
    if valid_vocab is not None:
        whole_number("valid_vocab", valid_vocab)
    if first_column < 0:
        raise ScoringInputError(f"first_column is {first_column}, expected the token id of the shard's column 0")
    if valid_vocab is not None and valid_vocab < 1:
        raise ScoringInputError(f"valid_vocab is {valid_vocab}, expected at least 1")


def statistics_layout(temperatures: tuple[float, ...], entropy: bool) -> StatisticsLayout:
    """Check the temperatures and return the layout of the statistics they need."""
    if not isinstance(temperatures, tuple | list):
        raise ScoringInputError(
            f"temperatures is {_shown(temperatures)}, expected a tuple of numbers such as (1.0, 0.7)"
        )
    switch("entropy", entropy)
    if not temperatures and not entropy:
        raise ScoringInputError("nothing is asked: give at least one temperature, or ask for the entropy")
    for temperature in temperatures:
        if not (_is_number(temperature) and COLDEST <= temperature <= HOTTEST):
            raise ScoringInputError(
                f"temperature is {_shown(temperature)}, expected a finite number above 0 ({COLDEST} to {HOTTEST})"
            )
    return StatisticsLayout(tuple(float(t) for t in temperatures), entropy)


def tensor(name: str, value: object) -> Tensor:
    """Return an argument that has to be a plain dense tensor: of torch's own class, with its values in its memory.

    Subclasses stand for something else than the numbers at their address (a mask beside them, a share of them,
    none at all), so none is taken.
    """
    if not isinstance(value, Tensor):
        raise ScoringInputError(f"{name} is of type {type(value).__name__}, expected a torch tensor")
    if type(value) not in PLAIN_CLASSES:
        raise ScoringInputError(
            f"{name} is of the tensor subclass {type(value).__name__}, expected a plain dense tensor"
        )
    if value.layout is not torch.strided or value.is_nested:
        kind = "nested" if value.is_nested else str(value.layout)
        raise ScoringInputError(f"{name} is a {kind} tensor, expected a dense one; convert it, or pad and flatten it")
    if value.device.type == "meta":
        raise ScoringInputError(f"{name} is on the meta device and holds no values; load or compute it first")
    if value.numel() > 0 and not _has_memory(value):
        raise ScoringInputError(
            f"{name} has no memory of its own (its storage was freed, or a transform of torch.func wraps it); "
            "load it, or score outside the transform"
        )
    return value


def _has_memory(value: Tensor) -> bool:
    """Whether all elements of a dense tensor lie in a storage that exists."""
    last = value.storage_offset() + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    try:
        return value.data_ptr() != 0 and value.untyped_storage().nbytes() >= (last + 1) * value.element_size()
    except RuntimeError:  # what torch.func wraps has no storage to ask for; NotImplementedError is one of these
        return False


def switch(name: str, value: object) -> None:
    """Check an argument that has to be True or False."""
    if not isinstance(value, bool):
        raise ScoringInputError(f"{name} is {_shown(value)}, expected True or False")


def whole_number(name: str, value: object) -> None:
    """Check an argument that has to be an int, of a size that a token id can be counted from."""
    if not isinstance(value, int) or isinstance(value, bool) or not -LARGEST_INT <= value <= LARGEST_INT:
        raise ScoringInputError(f"{name} is {_shown(value)}, expected an int of at most 2^62 either side of 0")


def _shown(value: object) -> str:
    """A value in a message, cut short."""
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python writes no int of more than some thousand digits
        return f"too long to be written, of type {type(value).__name__}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
