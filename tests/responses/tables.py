"""Tables of responses as tests make and compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core.methods import Method, RunState
from nemo_uecr.responses.replay import about_step
from nemo_uecr.responses.table import ANCHOR, ROWS, TOKENS, Responses, read_responses, write_responses


def tensors_of(path: Path) -> dict[str, Tensor]:
    """Every token column of a table in its layout [B, T], and the rewards."""
    table = read_responses(path)
    found = {name: table.padded(name) for name in table.token_columns}
    return found | ({"reward": torch.from_numpy(table.numbers("reward"))} if "reward" in table.names else {})


def write_step(
    path: Path, columns: Mapping[str, Any], method: Method, *, run: RunState | None = None, step: int = 1, **about: Any
) -> Path:
    """A saved step of [B] and [B, T] tensors or lists by column; groups are numbers."""
    rows = {name: _values(value) for name, value in columns.items() if name in ROWS}
    tokens = {name: value for name, value in columns.items() if name not in ROWS}
    prompts = "prompt_ids" in rows
    write_responses(
        path, rows | {"group": list(map(str, rows["group"]))}, tokens,
        about=about_step(method, run or RunState(), step=step) | about, prompts=prompts,
    )  # fmt: skip
    return path


def _values(value: Any) -> Sequence[Any]:
    floats = isinstance(value, Tensor) and value.is_floating_point()
    return value.numpy() if floats else value.tolist() if isinstance(value, Tensor) else value


def changed(path: Path, **columns: Any) -> None:
    """Write a table again with other columns."""
    import pyarrow
    import pyarrow.parquet as parquet

    table = parquet.read_table(path)
    for name, values in columns.items():
        field = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), field, pyarrow.array(values, type=field.type))
    parquet.write_table(table, path)


def with_observed(path: Path) -> None:
    """Write a table again with a token that was observed after the first and in the middle of every response."""
    import pyarrow.parquet as parquet

    observed = {"token_ids": 9, "tokens": "(observed)", "sampled": False, "loss_mask": False}
    table = parquet.read_table(path)
    columns = {}
    for name in (name for name in table.column_names if name in TOKENS or name.startswith(ANCHOR)):
        new = observed.get(name)
        columns[name] = [
            [own[0], new, *own[1 : len(own) // 2], *[new] * (len(own) > 3), *own[max(1, len(own) // 2) :]]
            for own in table[name].to_pylist()
        ]
    changed(path, **columns)


def records(path: Path) -> list[dict[str, Any]]:
    """Every row of a table as Python values."""
    import pyarrow.parquet as parquet

    return list(parquet.read_table(path).to_pylist())


def rows_of(table: Responses) -> list[dict[str, Any]]:
    """Every row with the columns of `ROWS`."""
    columns = {name: table.column(name) for name in table.names if name in ROWS}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
