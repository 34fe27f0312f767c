"""The review file: near cases for a person to judge, and the verdicts that come back."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError

COLUMNS = ("row", "method", "score", "benchmark", "problem", "verdict", "text", "benchmark_text")
VERDICTS = ("keep", "drop")


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
    """Whether somebody has begun to fill in the file."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", newline="") as file:
        return any((line.get("verdict") or "").strip() for line in csv.DictReader(file))


def review_fault(path: Path, held: set[int]) -> str | None:
    """Why a review file could not be filled in for these held rows; None when it can."""
    if not path.is_file():
        return "missing"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            if not {"row", "verdict"} <= set(reader.fieldnames or ()):
                return f"columns are {reader.fieldnames}; expected at least row and verdict"
            rows = {(line["row"] or "").strip() for line in reader}
    except (ValueError, csv.Error) as error:
        return f"no readable CSV ({error})"
    if rows != {str(row) for row in held}:
        return f"it has {len(rows)} rows and {len(held)} are held; expected a line for every held row and no other"
    return None


def read_verdicts(path: Path, held: Iterable[int]) -> dict[int, str]:
    """The verdict on every held row: dropped if any of its lines says drop.

    Args:
        path: the filled review file.
        held: numbers of the held rows.

    Raises:
        DataError: naming the line with another word, or the rows that are not judged or not held.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a review file with the column 'verdict' filled")
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        if not {"row", "verdict"} <= set(reader.fieldnames or ()):
            raise DataError(f"{path}: columns are {reader.fieldnames}; expected at least row and verdict")
        verdicts: dict[int, str] = {}
        for number, line in enumerate(reader, start=2):
            row, verdict = _verdict(line, f"{path}: record {number}")
            verdicts[row] = "drop" if "drop" in (verdict, verdicts.get(row)) else verdict
    waiting = set(held)
    for what, rows in (("no verdict on", waiting - verdicts.keys()), ("not held", verdicts.keys() - waiting)):
        if rows:
            raise DataError(f"{path}: {what} row {min(rows)} ({len(rows)} in all); expected one for every held row")
    return verdicts


def _verdict(line: Mapping[str, str | None], where: str) -> tuple[int, str]:
    row, verdict = (line["row"] or "").strip(), (line["verdict"] or "").strip().lower()
    if not row.isdecimal():
        raise DataError(f"{where}: row is {row!r}; expected the row's number")
    if verdict not in VERDICTS:
        raise DataError(f"{where}: verdict on row {row} is {verdict!r}; expected {' or '.join(VERDICTS)}")
    return int(row), verdict
