"""Rows of a JSONL or Parquet source, streamed: what is in memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.data.json_text import decoded_row
from nemo_uecr.errors import DataError, DependencyError

#: Field names by meaning, tried in this order.
QUESTION_KEYS = ("question", "problem")
ANSWER_KEYS = ("final_answer", "answer")
DIFFICULTY_KEYS = ("difficulty", "level")
#: Small fields that are carried along when the source has them.
CARRIED = ("topic", "subject")
PARQUET_ROWS = 1024

Row = dict[str, object]


@dataclass(frozen=True)
class Fields:
    """The source's field names; difficulty is None in a source without one."""

    question: str
    answer: str
    difficulty: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """Every field that is read, the carried ones included."""
        own = (self.question, self.answer) + (() if self.difficulty is None else (self.difficulty,))
        return own + CARRIED


def data_files(path: Path) -> list[Path]:
    """The file itself, or a folder's Parquet and JSONL files in order of name.

    Raises:
        DataError: If nothing readable is there.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".parquet", ".jsonl"))
        parquet = [file for file in files if file.suffix == ".parquet"]
        if files:
            return parquet or files
        raise DataError(f"{path}: no .parquet or .jsonl file in the folder; expected a data set")
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a .jsonl or .parquet file or a folder of them")
    return [path]


def fields_of(file: Path) -> Fields:
    """Which fields hold question, answer and difficulty, by the file's first row.

    Raises:
        DataError: If there is no question or no answer.
    """
    first = _names(file)
    if not first:
        raise DataError(f"{file}: no row; expected at least one problem")
    found = [next((key for key in keys if key in first), None) for keys in (QUESTION_KEYS, ANSWER_KEYS)]
    for key, keys in zip(found, (QUESTION_KEYS, ANSWER_KEYS), strict=True):
        if key is None:
            raise DataError(f"{file}: no field {' or '.join(map(repr, keys))}; the first row has {', '.join(first)}")
    difficulty = next((key for key in DIFFICULTY_KEYS if key in first), None)
    return Fields(str(found[0]), str(found[1]), difficulty)


def read_rows(file: Path, *, columns: tuple[str, ...] | None) -> Iterator[Row]:
    """The file's rows in order, one at a time.

    Args:
        file: JSONL, or Parquet by its suffix.
        columns: what to read of a Parquet file, as far as it is there; None reads everything.

    Raises:
        DataError: naming file and line of a row that is no JSON object.
    """
    if file.suffix == ".parquet":
        yield from _parquet(file, columns)
        return
    for number, line in raw_lines(file):
        yield parse_row(line, f"{file}:{number}")


def raw_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, blank ones left out."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line


def parse_row(line: bytes, where: str) -> Row:
    """One line of JSONL as a row.

    Raises:
        DataError: beginning with ``where``, for what is no JSON object in UTF-8, or says a key twice.
    """
    try:
        row = decoded_row(line, _row_of_pairs)
    except RepeatedKeyError as error:
        raise DataError(f"{where}: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8") from error
    except ValueError as error:  # MalformedJsonError, JSONDecodeError, or a number of thousands of digits
        raise DataError(f"{where}: malformed JSON ({error}); expected one object a line") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: got {type(row).__name__}; expected one JSON object a line")
    return row


class RepeatedKeyError(ValueError):
    """A JSON object says the same key twice, and Python would keep the last."""


def _row_of_pairs(pairs: list[tuple[str, object]]) -> Row:
    """A JSON object from its pairs, each key once."""
    row: Row = {}
    for key, value in pairs:
        if key in row:
            raise RepeatedKeyError(f"the key {key!r} stands twice in one object; expected each key once")
        row[key] = value
    return row


def _names(file: Path) -> list[str]:
    """Field names of the first row; a Parquet file has them in its schema, without reading a row."""
    if file.suffix == ".parquet":
        with _table(file) as table:
            names: list[str] = table.schema_arrow.names
            return names if table.metadata.num_rows else []
    return list(next(read_rows(file, columns=None), {}))


def _parquet(file: Path, columns: tuple[str, ...] | None) -> Iterator[Row]:
    with _table(file) as table:
        there = table.schema_arrow.names
        chosen = there if columns is None else [name for name in columns if name in there]
        for batch in table.iter_batches(batch_size=PARQUET_ROWS, columns=chosen):
            yield from batch.to_pylist()


@contextmanager
def _table(file: Path) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise DependencyError(f"reading {file} needs pyarrow; pip install 'nemo-uecr[data]'") from missing
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            yield table
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable Parquet file ({str(error).splitlines()[0]})") from error
