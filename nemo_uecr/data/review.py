"""The review file: near cases for a person to judge, and the verdicts that come back."""

from __future__ import annotations

import csv
import io
import re
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
_ROW = re.compile(r"[0-9]{1,15}")


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


def has_verdicts(path: Path) -> bool:
    """Whether somebody has begun to fill in the file.

    Raises:
        DataError: If it is there and cannot be read.
    """
    return path.is_file() and any(line["verdict"].strip() for line in _lines(path))


def review_fault(path: Path, held: Mapping[int, int]) -> str | None:
    """Why a review file could not be filled in for these held rows; None when it can.

    Args:
        path: the review file.
        held: lines of every held row, as `held_lines` counts them.
    """
    if not path.is_file():
        return "missing"
    try:
        found = dict(Counter(line["row"].strip() for line in _lines(path)))
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    if found != {str(row): number for row, number in held.items()}:
        return (
            f"it has {sum(found.values())} lines on {len(found)} rows and {len(held)} are held; "
            "expected a line for every held row and no other"
        )
    return None


def held_lines(held: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """How many lines of the review file each held row has: one for each finding."""
    return {row["row"]: len(row["findings"]) for row in held}


def read_verdicts(path: Path, held: Mapping[int, int]) -> dict[int, str]:
    """The verdict on every held row: dropped if any of its lines says drop.

    Args:
        path: the filled review file.
        held: lines of every held row, as `held_lines` counts them.

    Raises:
        DataError: If it is no such table, a line has another word, or rows are not judged, not held or judged twice.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a review file with the column 'verdict' filled")
    judged = [_verdict(line, f"{path}: record {number}") for number, line in enumerate(_lines(path), start=2)]
    counted = Counter(row for row, _ in judged)
    for what, rows in (
        ("no verdict on", held.keys() - counted.keys()),
        ("not held", counted.keys() - held.keys()),
        ("more than one line on", {row for row, number in counted.items() if number > held.get(row, number)}),
    ):
        if rows:
            raise DataError(f"{path}: {what} row {min(rows)} ({len(rows)} in all); expected one for every held row")
    dropped = {row for row, verdict in judged if verdict == "drop"}
    return {row: "drop" if row in dropped else "keep" for row in held}


def _verdict(line: Mapping[str, str], where: str) -> tuple[int, str]:
    row, verdict = line["row"].strip(), line["verdict"].strip().lower()
    if _ROW.fullmatch(row) is None:
        raise DataError(f"{where}: row is {row!r:.40}; expected the row's number")
    if verdict not in VERDICTS:
        raise DataError(f"{where}: verdict on row {row} is {verdict!r:.40}; expected {' or '.join(VERDICTS)}")
    return int(row), verdict


def _lines(path: Path) -> list[dict[str, str]]:
    """Row and verdict of every line, both as they are written.

    Raises:
        DataError: If the file is no UTF-8, has no commas, or lacks one of the two columns.
    """
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), restval="")
    try:
        columns = list(reader.fieldnames or ())
        if any(columns.count(name) != 1 for name in NEEDED):
            raise DataError(f"{path}: {_column_fault(columns)}")
        return [{name: line[name] for name in NEEDED} for line in reader]
    except csv.Error as error:
        raise DataError(f"{path}: no readable CSV ({error}); expected the table of `nemo-uecr data prepare`") from error


def _column_fault(columns: list[str]) -> str:
    if len(columns) == 1 and (sign := next((sign for sign in ";\t|" if sign in columns[0]), None)):
        return f"the columns are separated by {sign!r}; expected commas: save it as CSV with a comma as the separator"
    return f"columns are {columns!r:.200}; expected at least row and verdict, each once"


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        other = "UTF-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "another encoding"
        raise DataError(
            f"{path}: not UTF-8 but {other} (byte {error.start}); save it as CSV in UTF-8 and run the command again"
        ) from error
    if "\0" in text:
        raise DataError(f"{path}: not UTF-8 but another encoding, such as UTF-16; save it as CSV in UTF-8")
    return text
