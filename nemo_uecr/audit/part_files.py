"""Reads the two files of a part: the responses' columns and their packed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from nemo_uecr.audit.schema import COLUMNS, arrow_schema, row_path, token_path
from nemo_uecr.errors import DataError


def part_table(folder: Path, number: int, names: list[str]) -> dict[str, list[Any]]:
    """Columns of one part's responses.

    Raises:
        DataError: If the file cannot be read, or a column is missing or of another type.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    path, wanted = row_path(folder, number), arrow_schema()
    try:
        table = parquet.read_table(path, columns=names)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read ({' '.join(str(error).split())[:120]}); score again") from error
    for name in names:
        if name not in table.column_names:
            raise DataError(f"{path} has no column {name!r}; expected the file as `nemo-uecr score` wrote it")
        if table.schema.field(name).type != wanted.field(name).type:
            raise DataError(f"{path}: column {name!r} is {table.schema.field(name).type}; expected {COLUMNS[name]}")
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def part_tensors(folder: Path, number: int, names: Sequence[str]) -> dict[str, Tensor]:
    """Token tensors of one part."""
    return read_tensors(token_path(folder, number), names)


def read_tensors(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors of a safetensors file by name.

    Raises:
        DataError: If it cannot be read, or lacks one.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            missing = sorted(set(names) - set(file.keys()))
            if missing:
                raise DataError(f"{path} has no tensor {missing[0]!r}; expected {', '.join(names)}")
            return {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: not a readable safetensors file ({error}); score again") from error
