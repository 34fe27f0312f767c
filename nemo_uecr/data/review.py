"""The review file: near cases for a person to judge, and the verdicts that come back."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError

COLUMNS = ("row", "method", "score", "benchmark", "problem", "verdict", "text", "benchmark_text")
VERDICTS = ("keep", "drop")
NEEDED = ("row", "verdict")
#: Longest text of a cell, in characters; the csv module's own limit is shorter than the longest problems.
LONGEST_CELL = 1 << 26


def write_review(path: Path, held: Iterable[Mapping[str, Any]], questions: Mapping[tuple[str, str], str]) -> None:
    """One line for each finding of a held row, the nearest first, with an empty verdict.

    Args:
        path: CSV file.
        held: held rows with their findings.
        questions: benchmark texts by benchmark and problem id.
    """
    lines = [
        {
            "row": row["row"],
            "verdict": "",
            "text": row["question"],
            "benchmark_text": questions[finding["benchmark"], finding["problem"]],
            **finding,
        }
        for row in held
        for finding in row["findings"]
    ]
    lines.sort(key=lambda line: (-line["score"], line["row"]))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")


def held_lines(held: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many lines of the review file each held row has: one for each finding."""
    return {str(row["row"]): len(row["findings"]) for row in held}


def has_verdicts(path: Path) -> bool:
    """Whether somebody has begun to fill in the file.

    Raises:
        DataError: If it is there and cannot be read.
    """
    return path.is_file() and any(verdict for _, verdict in _lines(path))


def review_fault(path: Path, held: Mapping[str, int]) -> str | None:
    """Why a review file could not be filled in for these held rows; None when it can.

    Args:
        path: the review file.
        held: lines of every held row, as `held_lines` counts them.
    """
    if not path.is_file():
        return "missing"
    try:
        found = Counter(row for row, _ in _lines(path))
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    return None if found == held else "expected a line for every held row and no other"


def read_verdicts(path: Path, held: Mapping[str, int]) -> dict[int, str]:
    """The verdict on every held row: dropped if any of its lines says drop.

    Args:
        path: the filled review file.
        held: lines of every held row, as `held_lines` counts them.

    Raises:
        DataError: If it is no such table, a line has another word, or rows are not judged, not held or judged twice.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a review file with the column 'verdict' filled")
    judged = _lines(path)
    for row, verdict in judged:
        if verdict not in VERDICTS:
            raise DataError(f"{path}: verdict on row {row} is {verdict!r:.40}; expected {' or '.join(VERDICTS)}")
    counted = Counter(row for row, _ in judged)
    wrong = sorted(row for row in counted.keys() | held.keys() if counted[row] != held.get(row))
    if wrong:
        raise DataError(
            f"{path}: {counted[wrong[0]]} lines on row {wrong[0]!r:.40}, {held.get(wrong[0], 0)} expected "
            f"({len(wrong)} such rows); expected every line of the file, each with a verdict"
        )
    dropped = {row for row, verdict in judged if verdict == "drop"}
    return {int(row): "drop" if row in dropped else "keep" for row in held}


def _lines(path: Path) -> list[tuple[str, str]]:
    """Row and verdict of every line.

    Raises:
        DataError: If the file is no UTF-8, has no commas, or lacks one of the two columns: what spreadsheet programs
            make of it.
    """
    csv.field_size_limit(LONGEST_CELL)
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), restval="")
        columns = list(reader.fieldnames or ())
        if not set(NEEDED) <= set(columns):
            raise DataError(
                f"{path}: columns are {columns!r:.200}; expected row and verdict: save it as CSV separated by commas"
            )
        return [(line["row"].strip(), line["verdict"].strip().lower()) for line in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: no readable CSV in UTF-8 ({error}); save it as CSV in UTF-8") from error
