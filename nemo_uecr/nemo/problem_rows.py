"""Reads a problem file and keeps the rows that a run trains on."""

from __future__ import annotations

import random
from pathlib import Path

from nemo_uecr.data.manifest import training_file
from nemo_uecr.data.problems import Row, read_rows, text_of
from nemo_uecr.errors import DataError


def selected_rows(
    path: str, *, difficulty_key: str | None, low: float | None, high: float | None, subset: int | None, seed: int
) -> list[Row]:
    """Rows in the file's order, those of the wanted difficulty, and a seeded draw of ``subset`` of them.

    Args:
        path: JSONL file, or a folder made by `nemo-uecr data prepare`.
        difficulty_key: field of the difficulty; None keeps every row.
        low: lowest difficulty that is kept.
        high: highest one.
        subset: rows to draw; None is all.
        seed: of the draw.

    Raises:
        DataError: the file cannot be read, a row has no difficulty, or fewer rows remain than are asked for.
    """
    rows = list(read_rows(training_file(Path(path), "data.train"), columns=None))
    if difficulty_key is not None and low is not None and high is not None:
        rows = [row for row in rows if low <= _difficulty(row, difficulty_key, path) <= high]
    if subset is None and not rows:
        raise DataError(f"{path}: no problem is left of difficulty {low} to {high}; expected at least one (data.train)")
    if subset is None:
        return rows
    if subset > len(rows):
        raise DataError(f"{path}: {len(rows)} problems are left to draw from; expected at least data.subset={subset}")
    chosen = sorted(random.Random(seed).sample(range(len(rows)), subset))
    return [rows[index] for index in chosen]


def text_field(row: Row, key: str, path: str, setting: str) -> str:
    """A row's text or number as text.

    Raises:
        DataError: naming the configuration's key, if the row has neither.
    """
    text = text_of(row.get(key))
    if text is None:
        raise DataError(f"{path}: a problem has no text under {key!r}; it has {', '.join(row)}. Set {setting}")
    return text


def _difficulty(row: Row, key: str, path: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        value = ""
    try:
        return float(value)
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: a problem has no number under {key!r} ({sorted(row)}); expected data.difficulty_key there"
        ) from error
