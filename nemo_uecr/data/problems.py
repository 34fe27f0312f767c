"""Reads problems from JSONL, refusing every row that could not be trained or evaluated on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.rows import Row, parse_row, raw_lines
from nemo_uecr.data.texts import empty_box, number_text, usable
from nemo_uecr.errors import DataError


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
    seen: dict[str, tuple[int, str]] = {}
    for number, line in raw_lines(path):
        row = parse_row(line, f"{path}:{number}")
        problem = _problem(row, f"{path}:{number}", number, (question_key, answer_key, id_key))
        plain = problem.id.strip()  # two ids that a reader cannot tell apart are one
        if plain in seen:
            other, before = seen[plain]
            told = "" if before == problem.id else f" as {before!r}; white space around an id does not count"
            raise DataError(
                f"{path}:{number}: duplicate id {problem.id!r}, also on line {other}{told}; ids must be unique"
            )
        seen[plain] = number, problem.id
        problems.append(problem)
    if not problems:
        raise DataError(f"{path}: no problems in the file; expected at least one line of JSON")
    return problems


def _problem(row: Row, where: str, number: int, keys: tuple[str, str, str | None]) -> Problem:
    question_key, answer_key, id_key = keys
    question = _field(row, question_key, where)
    if not isinstance(question, str) or not usable(question):
        raise DataError(f"{where}: {question_key} is {_shown(question)}; expected a non-empty text")
    given = _field(row, answer_key, where)
    answer = given if isinstance(given, str) else number_text(given)
    if answer is None or not usable(answer) or empty_box(answer):
        raise DataError(f"{where}: {answer_key} is {_shown(given)}; expected a non-empty text or a number")
    identity = number if id_key is None else _field(row, id_key, where)
    if isinstance(identity, bool) or not isinstance(identity, str | int) or not usable(str(identity)):
        raise DataError(f"{where}: {id_key} is {_shown(identity)}; expected a non-empty text or an integer")
    return Problem(str(identity), question, answer)


def _field(row: Row, key: str, where: str) -> object:
    if key not in row:
        raise DataError(f"{where}: no field {key!r}; the row has {', '.join(sorted(row)) or 'none'}")
    return row[key]


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
