"""Reads problems from JSONL, refusing every row that could not be trained or evaluated on."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.json_text import decoded_row
from nemo_uecr.errors import DataError

#: Unicode categories without anything to see: controls, format characters (a zero-width space), separators.
INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")


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
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            row = _parse(line, f"{path}:{number}")
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


def _parse(line: bytes, where: str) -> dict[str, object]:
    try:
        row = decoded_row(line, row_of_pairs)
    except RepeatedKeyError as error:
        raise DataError(f"{where}: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8") from error
    except ValueError as error:  # MalformedJsonError, JSONDecodeError, or a number of thousands of digits
        raise DataError(f"{where}: malformed JSON ({error}); expected one object a line") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: got {type(row).__name__}; expected one JSON object a line")
    return row


def _problem(row: dict[str, object], where: str, number: int, keys: tuple[str, str, str | None]) -> Problem:
    question_key, answer_key, id_key = keys
    question = _field(row, question_key, where)
    if not isinstance(question, str) or not usable(question):
        raise DataError(f"{where}: {question_key} is {_shown(question)}; expected a non-empty text")
    answer = _text_answer(_field(row, answer_key, where))
    if answer is None or not usable(answer) or empty_box(answer):
        raise DataError(f"{where}: {answer_key} is {_shown(row[answer_key])}; expected a non-empty text or a number")
    identity = number if id_key is None else _field(row, id_key, where)
    if isinstance(identity, bool) or not isinstance(identity, str | int) or not usable(str(identity)):
        raise DataError(f"{where}: {id_key} is {_shown(identity)}; expected a non-empty text or an integer")
    return Problem(str(identity), question, answer)


def _field(row: dict[str, object], key: str, where: str) -> object:
    if key not in row:
        raise DataError(f"{where}: no field {key!r}; the row has {', '.join(sorted(row)) or 'none'}")
    return row[key]


def _text_answer(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):  # Python reads NaN and Infinity, which are no JSON
        return None
    return str(int(value)) if value.is_integer() else repr(value)


def usable(text: str) -> bool:
    """Whether a text has a visible character and can be written as UTF-8 (JSON can spell a lone surrogate)."""
    kinds = {unicodedata.category(character) for character in set(text)}
    return "Cs" not in kinds and bool(kinds - INVISIBLE)


def empty_box(answer: str) -> bool:
    r"""Whether an answer is a ``\boxed{}`` around nothing that can be seen; no response could match it."""
    found = _BOX.fullmatch(answer.strip())
    return found is not None and not usable(found[1])


class RepeatedKeyError(ValueError):
    """A JSON object says the same key twice, and Python would keep the last."""


def row_of_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object from its pairs, each key once.

    Raises:
        RepeatedKeyError: naming the first key that comes again.
    """
    row: dict[str, object] = {}
    for key, value in pairs:
        if key in row:
            raise RepeatedKeyError(f"the key {key!r} stands twice in one object; expected each key once")
        row[key] = value
    return row


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
