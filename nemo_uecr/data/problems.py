"""Problems from JSONL or Parquet: rows are streamed, and one that could not be trained or evaluated on is refused."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter, ValidationError

from nemo_uecr.errors import DataError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

    from nemo_uecr.config.schema import DataConfig, RoutingConfig

log = logging.getLogger(__name__)

#: Field names by meaning, tried in this order.
QUESTION_KEYS = ("question", "problem")
ANSWER_KEYS = ("final_answer", "answer")
DIFFICULTY_KEYS = ("difficulty", "level")
#: Small fields that are carried along when the source has them.
CARRIED = ("topic", "subject")
PARQUET_ROWS = 1024

Row = dict[str, object]
Line = TypeVar("Line")


@dataclass(frozen=True)
class Problem:
    """One problem with its reference answer, and the whole row that it comes from."""

    id: str
    question: str
    answer: str
    columns: Row = field(default_factory=dict, compare=False)


def load_problems(path: Path, *, question_key: str, answer_key: str, id_key: str | None) -> list[Problem]:
    """All problems of a JSONL file, in file order. Blank lines are skipped.

    An answer may be a number (27.0 counts as 27). Ids are unique in the file; without ``id_key`` lines are numbered.
    """
    if not path.is_file():
        raise DataError(f"no file {path.absolute()}; expected JSONL problems with {question_key!r} and {answer_key!r}")
    problems: list[Problem] = []
    lines: dict[str, int] = {}
    for number, line in raw_lines(path):
        where = f"{path}:{number}"
        row = parse_row(line, where)
        question, given = row.get(question_key), row.get(answer_key)
        answer = given if isinstance(given, str) else text_of(given)
        identity = number if id_key is None else row.get(id_key)
        if not (isinstance(question, str) and usable(question) and answer and usable(answer) and identity is not None):
            raise DataError(
                f"{where}: {question_key} is {question!r:.40}, {answer_key} {given!r:.40}, the id {identity!r:.40}; "
                f"expected a text, a text or number, and an id. The row has {', '.join(sorted(row)) or 'no fields'}"
            )
        name = str(identity)
        if name in lines:
            raise DataError(f"{where}: duplicate id {name!r}, also on line {lines[name]}; ids must be unique")
        lines[name] = number
        problems.append(Problem(name, question, answer, row))
    if not problems:
        raise DataError(f"{path}: no problems in the file; expected at least one line of JSON")
    return problems


def problems_of(data: DataConfig, path: Path) -> list[Problem]:
    """The problems of a file, by the field names of a configuration's section `data`."""
    return load_problems(path, question_key=data.question_key, answer_key=data.answer_key, id_key=data.id_key)


# What a problem's columns say.


def filled(template: str, problem: Problem) -> str:
    """A template with {question}, {answer} and any column of the problem in place of their names in braces."""

    def text(found: re.Match[str]) -> str:
        own = {"question": problem.question, "answer": problem.answer}
        column = own.get(found[1]) or text_of(problem.columns.get(found[1]))
        if column is None:
            raise DataError(
                f"problem {problem.id!r} has no text under {found[1]!r}, which prompt_template {template!r:.60} asks "
                f"for; it has {', '.join(problem.columns)}"
            )
        return column

    return re.sub(r"\{(\w+)\}", text, template)


def teacher_name(problem: Problem, routing: RoutingConfig | None, names: Iterable[str]) -> str:
    """The one of ``names`` that scores the responses to a problem; refused where its column has none of them."""
    known = tuple(names)
    if routing is None:
        return known[0]
    value = problem.columns.get(routing.key)
    name = next((name for name in known if name == value), routing.default)
    if name is None:
        raise DataError(
            f"problem {problem.id!r} has {value!r:.40} under {routing.key!r} (routing.key); expected one of the "
            f"teachers {', '.join(known)}: correct the row, or give routing.default"
        )
    return name


def check_routing(problems: Sequence[Problem], routing: RoutingConfig | None, names: Iterable[str]) -> None:
    """Refuse, at start, problems without a teacher or without the column; say which teachers no problem names."""
    if routing is None:
        return
    if not any(routing.key in problem.columns for problem in problems):
        columns = ", ".join(problems[0].columns)
        raise DataError(f"routing.key: no problem has a column {routing.key!r}; the first has {columns}")
    scored = Counter(teacher_name(problem, routing, names) for problem in problems)
    if idle := [name for name in names if not scored[name]]:
        log.warning("no problem is routed to %s; problems by teacher: %s", ", ".join(idle), dict(scored))


# Rows of a source.


@dataclass(frozen=True)
class Fields:
    """The source's field names; difficulty is None in a source without one."""

    question: str
    answer: str
    difficulty: str | None


def data_files(path: Path) -> list[Path]:
    """The file itself, or a folder's Parquet files in order of name, or its JSONL files where it has no Parquet."""
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet")) or sorted(path.rglob("*.jsonl"))
    if not files:
        raise DataError(f"{path}: no such file; expected a .jsonl or .parquet file or a folder of them")
    return files


def fields_of(file: Path) -> Fields:
    """Which fields hold question, answer and difficulty, by the file's first row."""
    if file.suffix == ".parquet":
        with _parquet(file) as table:
            first = table.schema_arrow.names if table.metadata.num_rows else []
    else:
        first = list(next(read_rows(file), {}))
    question, answer, difficulty = (
        next((key for key in keys if key in first), None) for keys in (QUESTION_KEYS, ANSWER_KEYS, DIFFICULTY_KEYS)
    )
    if question is None or answer is None:
        missing = " or ".join(map(repr, QUESTION_KEYS if question is None else ANSWER_KEYS))
        raise DataError(f"{file}: no field {missing}; the first row has {', '.join(first) or 'no fields'}")
    return Fields(question, answer, difficulty)


def read_rows(file: Path, *, fields: Fields | None = None) -> Iterator[Row]:
    """The rows of a JSONL or Parquet file in order, one at a time; of Parquet only the columns of ``fields``."""
    if file.suffix != ".parquet":
        yield from (parse_row(line, f"{file}:{number}") for number, line in raw_lines(file))
        return
    with _parquet(file) as table:
        names = table.schema_arrow.names
        wanted = names if fields is None else (fields.question, fields.answer, fields.difficulty, *CARRIED)
        for batch in table.iter_batches(batch_size=PARQUET_ROWS, columns=[name for name in wanted if name in names]):
            yield from batch.to_pylist()


@contextmanager
def _parquet(file: Path) -> Iterator[ParquetFile]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(file) as table:
            yield table
    except ArrowException as error:
        raise DataError(f"{file}: not a whole Parquet file ({str(error).partition('.')[0]}); copy it again") from error


def raw_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, blank ones left out."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line


def checked_lines(path: Path, kind: type[Line]) -> Iterator[tuple[str, Line]]:
    """Place and content of each line of a JSONL file, as pydantic reads it."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected JSONL")
    adapter = TypeAdapter(kind)
    for number, line in raw_lines(path):
        try:
            yield f"{path}:{number}", adapter.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise DataError(f"{path}:{number}: {field}{': ' * bool(field)}{first['msg']}") from error


def parse_row(line: bytes, where: str) -> Row:
    """One line of JSONL as a row; ``where`` begins the message of what is no JSON object in UTF-8."""
    try:
        row = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise DataError(f"{where}: malformed JSON ({error}); expected one object a line, in UTF-8") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: got {type(row).__name__}; expected one JSON object a line")
    return row


# Fields as texts.


def usable(text: str) -> bool:
    """Whether a text is more than blanks and can be written as UTF-8 (JSON can spell a lone surrogate)."""
    return bool(text.strip()) and not any("\ud800" <= sign <= "\udfff" for sign in text)


def text_of(value: object) -> str | None:
    """A usable text without outer blanks, or a finite number as text (27.0 as "27"); None for anything else."""
    if isinstance(value, str):
        return value.strip() if usable(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    return str(int(value)) if value.is_integer() else repr(value)
