"""Writes a folder of scores: the plan first, then part after part, each complete or absent.

Shape legend: b = responses of one part, N = their tokens in a flat list.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from nemo_uecr.audit.part_checks import content_sha256, read_plan
from nemo_uecr.audit.schema import FORMAT, PARTS, PLAN, RESPONSES, arrow_schema, part_numbers, row_path, token_path
from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import replace_file

#: Grows with every checkpoint scored; everything else of the plan is fixed by the first call.
GROWING = ("students", "sources")


def keep_plan(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Write the plan, or add to the one that is there.

    Args:
        folder: the folder of scores.
        plan: ``teacher``, ``anchors``, ``students``, ``sources``, the settings of the scoring, and, of a scoring that
            an interruption may leave unfinished, ``responses``, how many there will be.

    Returns:
        The plan as it now stands.

    Raises:
        RunFolderError: If the folder's scores were made differently; the message names the first key.
    """
    wanted = merged_plan(folder, plan)
    _write_plan(folder, wanted)
    return wanted


def merged_plan(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """The plan as it will stand once this one is kept; nothing is written. One that no part followed is replaced.

    Raises:
        RunFolderError: If the folder's scores were made differently; the message names the first key.
    """
    wanted: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **plan}))
    if (folder / PLAN).is_file() and (read_plan(folder)[PARTS] or part_numbers(folder)):
        written = read_plan(folder)
        for key in sorted((wanted.keys() | written.keys()) - {PARTS, RESPONSES}):
            if key not in GROWING and wanted.get(key) != written.get(key):
                raise RunFolderError(
                    f"{folder} holds scores with {key}={written.get(key)!r}, this call has {wanted.get(key)!r}; "
                    "choose another --out"
                )
        counted = {RESPONSES: wanted[RESPONSES]} if RESPONSES in wanted else {}
        wanted = {**written, **counted, **{key: _joined(written[key], wanted[key], folder) for key in GROWING}}
    else:
        wanted[PARTS] = {}
    return wanted


def record_files(folder: Path, contents: Mapping[Path, bytes]) -> None:
    """Add the sha256 of files of a part to the plan, before the file is written that makes them count."""
    plan = read_plan(folder)
    hashes = {path.name: content_sha256(content) for path, content in contents.items()}
    _write_plan(folder, {**plan, PARTS: plan[PARTS] | hashes})


def _write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    replace_file(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode())


def _joined(before: dict[str, Any], now: dict[str, Any], folder: Path) -> dict[str, Any]:
    for key in before.keys() & now.keys():
        if before[key] != now[key]:
            raise RunFolderError(f"{folder} was begun with {key} = {before[key]}, now {now[key]}; choose another --out")
    return {**before, **now}


def next_number(folder: Path) -> int:
    """Number of the part to write: a part that a kill left without its rows is written over."""
    numbers = part_numbers(folder)
    return numbers[-1] + 1 if numbers else 0


def write_part(folder: Path, number: int, rows: Sequence[Mapping[str, Any]], tensors: dict[str, Tensor]) -> None:
    """Write a part: the tokens, the hashes of both files, then the rows that make it count."""
    import pyarrow
    import pyarrow.parquet as parquet
    from safetensors.torch import save

    table = pyarrow.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema())
    table.validate(full=True)
    content = io.BytesIO()
    parquet.write_table(table, content)
    packed = {name: tensor.contiguous() for name, tensor in tensors.items()}
    tokens = save(packed, metadata={"format": FORMAT})
    replace_file(token_path(folder, number), tokens)
    record_files(folder, {token_path(folder, number): tokens, row_path(folder, number): content.getvalue()})
    replace_file(row_path(folder, number), content.getvalue())
