"""Reads a problem file and keeps the rows that a run trains on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError


def selected_rows(
    path: str, *, difficulty_key: str | None, low: float | None, high: float | None, subset: int | None, seed: int
) -> list[dict[str, Any]]:
    """Rows in the file's order, those of the wanted difficulty, and a seeded draw of ``subset`` of them.

    Raises:
        DataError: the file cannot be read, a row has no difficulty, or fewer rows remain than are asked for.
    """
    rows = _rows(Path(path))
    if difficulty_key is not None and low is not None and high is not None:
        rows = [row for row in rows if low <= _difficulty(row, difficulty_key, path) <= high]
    if subset is None:
        return rows
    if subset > len(rows):
        raise DataError(f"{path}: {len(rows)} problems are left to draw from; expected at least data.subset={subset}")
    chosen = sorted(random.Random(seed).sample(range(len(rows)), subset))
    return [rows[index] for index in chosen]


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a JSONL file of problems (data.train)")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error}); expected one object a line") from error
        rows.append(row)
    return rows


def _difficulty(row: dict[str, Any], key: str, path: str) -> float:
    try:
        return float(row[key])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: a problem has no number under {key!r} ({sorted(row)}); expected data.difficulty_key there"
        ) from error
