"""The weight files of a Hugging Face folder: which ones there are, and whether each is as long as its header says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.json_text import decoded
from nemo_uecr.data.model_files import read_object
from nemo_uecr.errors import DataError

__all__ = ["INDEX", "SINGLE", "Tensor", "read_header", "weight_names"]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MOST_HEADER = 100_000_000
"""Bytes; the limit of safetensors itself."""

LONGEST_NAME = 255
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
"""Of one element; dtypes that are not here are not measured."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file.

    Attributes:
        dtype: as safetensors names it.
        shape: its shape.
        end: bytes from the first tensor's first one to this one's last.
    """

    dtype: str
    shape: tuple[int, ...]
    end: int


def weight_names(folder: Path) -> list[str]:
    """Names of the weight files: those of the index, or the single one.

    Raises:
        DataError: an index that says of no tensor where it is.
    """
    path = folder / INDEX
    if not path.is_file():
        return [SINGLE]
    placed = read_object(path).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise DataError(f"{path}: no weight_map, it is unreadable; expected where each tensor is")
    for tensor, name in placed.items():
        if not isinstance(name, str) or not _is_file_name(name):
            raise DataError(f"{path}: weight_map has {str(name)[:60]!r} for {tensor[:60]}; expected a file's name")
    return sorted(set(placed.values()))


def _is_file_name(name: str) -> bool:
    """Half of a surrogate pair, which JSON can spell, is no text that a file system takes."""
    length = len(name.encode("utf-8", "surrogatepass"))
    odd = any(sign in "/\0" or "\ud800" <= sign <= "\udfff" for sign in name)
    return 0 < length <= LONGEST_NAME and not odd


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, whose size must be what they need.

    The file is 8 bytes of header length, the header as JSON, and the tensors up to their largest end offset.

    Raises:
        DataError: the file is missing, too short, too long, empty of tensors, or none.
    """
    if not path.is_file():
        raise DataError(f"{path}: missing shard, {path.parent} lacks {path.name}; copy the model again")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(MOST_HEADER, size - 8):
            raise DataError(f"{path}: truncated shard or no safetensors file; copy the model again")
        text = file.read(length)
    try:
        header = decoded(text)
    except ValueError:
        raise DataError(f"{path}: no safetensors file, its header is no JSON; copy the model again") from None
    if not isinstance(header, dict):
        raise DataError(f"{path}: no safetensors file, its header is no object; copy the model again")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry) for name, entry in header.items()}
    if not tensors:
        raise DataError(f"{path}: its header names no tensor; copy the model again")
    _check_size(path, size, 8 + length + max(tensor.end for tensor in tensors.values()))
    return tensors


def _check_size(path: Path, size: int, expected: int) -> None:
    if size < expected:
        raise DataError(f"{path}: truncated shard of {size} bytes; expected {expected}, its header says. Copy it again")
    if size > expected:
        raise DataError(f"{path}: {size} bytes, its header says {expected}: more than its tensors. Copy it again")


def _tensor(path: Path, name: str, entry: object) -> Tensor:
    fault = f"{path}: its header is damaged at {name[:60]!r}; copy the model again"
    if not isinstance(entry, dict):
        raise DataError(fault)
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    sizes, ends = _counts(shape), _counts(offsets)
    if not isinstance(dtype, str) or sizes is None or ends is None or len(ends) != 2 or ends[1] < ends[0]:
        raise DataError(fault)
    if dtype in BITS and (ends[1] - ends[0]) * 8 != math.prod(sizes) * BITS[dtype]:
        raise DataError(fault)
    return Tensor(dtype, sizes, ends[1])


def _counts(values: object) -> tuple[int, ...] | None:
    """A list of sizes; None if it is something else."""
    if not isinstance(values, list):
        return None
    sound = all(isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 for value in values)
    return tuple(values) if sound else None
