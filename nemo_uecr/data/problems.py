"""Problems from JSONL or Parquet: rows are streamed, and one that could not be trained or evaluated on is refused."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError, DependencyError, first_line

#: Field names by meaning, tried in this order.
QUESTION_KEYS = ("question", "problem")
ANSWER_KEYS = ("final_answer", "answer")
DIFFICULTY_KEYS = ("difficulty", "level")
#: Small fields that are carried along when the source has them.
CARRIED = ("topic", "subject")
PARQUET_ROWS = 1024
#: Unicode categories without anything to see: controls, format characters (a zero-width space), separators.
INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")

Row = dict[str, object]


@dataclass(frozen=True)
class Problem:
    """One problem with its reference answer."""

    id: str
    question: str
    answer: str


def load_problems(path: Path, *, question_key: str, answer_key: str, id_key: str | None) -> list[Problem]:
    """All problems of a JSONL file, in file order. Blank lines are skipped.

    Args:
        path: the file, UTF-8, one object a line.
        question_key: field of the question, a text.
        answer_key: field of the answer, a text or a number (27.0 counts as 27).
        id_key: field of the id, unique in the file; None numbers the lines from 1.

    Raises:
        DataError: naming file and line for a missing file, malformed JSON, a missing or empty field, a duplicate id.
    """
    if not path.is_file():
        raise DataError(
            f"{path}: no such file; expected JSONL problems with fields {question_key!r} and {answer_key!r}"
        )
    problems: list[Problem] = []
    lines: dict[str, int] = {}
    for number, line in raw_lines(path):
        where = f"{path}:{number}"
        row = parse_row(line, where)
        question, given = _field(row, question_key, where), _field(row, answer_key, where)
        if not isinstance(question, str) or not usable(question):
            raise DataError(f"{where}: {question_key} is {question!r:.40}; expected a non-empty text")
        answer = given if isinstance(given, str) else text_of(given)
        if answer is None or not usable(answer) or empty_box(answer):
            raise DataError(f"{where}: {answer_key} is {given!r:.40}; expected a non-empty text or a number")
        identity = number if id_key is None else _field(row, id_key, where)
        if isinstance(identity, bool) or not isinstance(identity, str | int) or not usable(str(identity)):
            raise DataError(f"{where}: {id_key} is {identity!r:.40}; expected a non-empty text or an integer")
        name = str(identity)
        if name in lines:
            raise DataError(f"{where}: duplicate id {name!r}, also on line {lines[name]}; ids must be unique")
        lines[name] = number
        problems.append(Problem(name, question, answer))
    if not problems:
        raise DataError(f"{path}: no problems in the file; expected at least one line of JSON")
    return problems


def _field(row: Row, key: str, where: str) -> object:
    if key not in row:
        raise DataError(f"{where}: no field {key!r}; the row has {', '.join(sorted(row)) or 'none'}")
    return row[key]


# Rows of a source.


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
    """The file itself, or a folder's Parquet files in order of name, or its JSONL files where it has no Parquet.

    Raises:
        DataError: If nothing readable is there.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file; expected a .jsonl or .parquet file or a folder of them")
    files = sorted(path.rglob("*.parquet")) or sorted(path.rglob("*.jsonl"))
    if not files:
        raise DataError(f"{path}: no .parquet or .jsonl file in the folder; expected a data set")
    return files


def fields_of(file: Path) -> Fields:
    """Which fields hold question, answer and difficulty, by the file's first row.

    Raises:
        DataError: If there is no question or no answer.
    """
    first = _names(file)
    if not first:
        raise DataError(f"{file}: no row; expected at least one problem")
    question, answer, difficulty = (
        next((key for key in keys if key in first), None) for keys in (QUESTION_KEYS, ANSWER_KEYS, DIFFICULTY_KEYS)
    )
    if question is None or answer is None:
        missing = " or ".join(map(repr, QUESTION_KEYS if question is None else ANSWER_KEYS))
        raise DataError(f"{file}: no field {missing}; the first row has {', '.join(first)}")
    return Fields(question, answer, difficulty)


def read_rows(file: Path, *, columns: tuple[str, ...] | None) -> Iterator[Row]:
    """The file's rows in order, one at a time.

    Args:
        file: JSONL, or Parquet by its suffix.
        columns: what to read of a Parquet file, as far as it is there; None reads everything.

    Raises:
        DataError: naming file and line of a row that is no JSON object.
    """
    if file.suffix != ".parquet":
        yield from (parse_row(line, f"{file}:{number}") for number, line in raw_lines(file))
        return
    with _table(file) as table:
        there = table.schema_arrow.names
        chosen = there if columns is None else [name for name in columns if name in there]
        for batch in table.iter_batches(batch_size=PARQUET_ROWS, columns=chosen):
            yield from batch.to_pylist()


def raw_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, blank ones left out."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line


def parse_row(line: bytes, where: str) -> Row:
    """One line of JSONL as a row.

    Raises:
        DataError: beginning with ``where``, for what is no JSON object in UTF-8.
    """
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8") from error
    except ValueError as error:
        raise DataError(f"{where}: malformed JSON ({error}); expected one object a line") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: got {type(row).__name__}; expected one JSON object a line")
    return row


def _names(file: Path) -> list[str]:
    """Field names of the first row; a Parquet file has them in its schema, without reading a row."""
    if file.suffix == ".parquet":
        with _table(file) as table:
            names: list[str] = table.schema_arrow.names
            return names if table.metadata.num_rows else []
    return list(next(read_rows(file, columns=None), {}))


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
        raise DataError(f"{file}: not a readable Parquet file ({first_line(error)})") from error


# Fields as texts.


def usable(text: str) -> bool:
    """Whether a text has a visible character and can be written as UTF-8 (JSON can spell a lone surrogate)."""
    kinds = {unicodedata.category(character) for character in set(text)}
    return "Cs" not in kinds and bool(kinds - INVISIBLE)


def empty_box(answer: str) -> bool:
    r"""Whether an answer is a ``\boxed{}`` around nothing that can be seen; no response could match it."""
    found = _BOX.fullmatch(answer.strip())
    return found is not None and not usable(found[1])


def text_of(value: object) -> str | None:
    """A usable text without outer blanks, or a finite number as text (27.0 as "27"); None for anything else."""
    if isinstance(value, str):
        return value.strip() if usable(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    return str(int(value)) if value.is_integer() else repr(value)
