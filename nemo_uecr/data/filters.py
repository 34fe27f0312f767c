"""The rules by which rows of a training source are kept or removed, and what is written of a row."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from nemo_uecr.data.problems import CARRIED, Fields, Problem, UnreadableRow, kind_of, level_of, usable, value_at
from nemo_uecr.data.sources import Row
from nemo_uecr.errors import DataError

#: Part of every manifest; raised when the same source and settings would give other rows.
FILTER_VERSION = "5"

_NUMBER = r"[+-]?(?:\d+|\d{1,3}(?:(?:,|\{,\})\d{3})+)"
_FRACTION = r"[+-]?\\[dt]?frac\s*(?:\{\s*[+-]?\d+\s*\}|\d)\s*(?:\{\s*\d+\s*\}|\d)|[+-]?\d+\s*/\s*\d+"
#: Answer types: name and pattern, tried in this order on the answer without dollar signs and outer blanks.
ANSWER_TYPES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for name, pattern in (
        ("integer", _NUMBER),
        ("decimal", r"[+-]?\d*\.\d+"),
        ("fraction", _FRACTION),
        ("yes_no", r"(?:\\text\s*\{\s*)?(?:yes|no|true|false)(?:\s*\})?\.?"),
        ("choice", r"(?:\\text\s*\{\s*)?\(?[A-E]\)?(?:\s*\})?"),
        ("infinite", r"[+-]?\\infty|(?:\\text\s*\{\s*)?(?:does not exist|diverges|undefined|infinity)(?:\s*\})?"),
        ("matrix", r".*\\begin\s*\{[a-z]*matrix\}.*"),
        ("interval", r"[\[(\]].*,.*[\])\[]\s*(?:\\cup.*)?"),
        ("set", r"\\\{.*\\\}|\\emptyset|\\varnothing"),
        ("equation", r"[^=]*[^<>!=]=[^=]*"),
        ("text", r"(?:\\(?:text|mathrm|mbox)\s*\{[^}]*\}|[A-Za-z][A-Za-z' -]{3,})\.?"),
    )
)
#: What no pattern fits.
OTHER = "expression"
NAMES: tuple[str, ...] = (*(name for name, _ in ANSWER_TYPES), OTHER)


def answer_type(answer: str) -> str:
    """The first type that the whole answer fits, `expression` when none does."""
    bare = answer.replace("$", "").strip()
    return next((name for name, pattern in ANSWER_TYPES if pattern.fullmatch(bare)), OTHER)


def checked_types(names: Sequence[str], option: str) -> frozenset[str]:
    """The names as a set; a `DataError` where one is no answer type."""
    if unknown := set(names) - set(NAMES):
        raise DataError(f"{option}: got {min(unknown)!r}; expected some of {', '.join(NAMES)}")
    return frozenset(names)


def refusal(
    row: Row, answer: str, fields: Fields, *, difficulty: tuple[float, float] | None, types: frozenset[str]
) -> str | None:
    """The first rule by which a row is removed; UnreadableRow where a difficulty is asked for and it has none."""
    if difficulty is not None:
        given = value_at(row, str(fields.difficulty))
        level = level_of(given)
        if level is None:
            wrong = f"{fields.difficulty} is {kind_of(given)}, expected a number"
            raise UnreadableRow("difficulty_missing" if given in (None, "") else wrong)
        if not difficulty[0] <= level <= difficulty[1]:
            return "difficulty_outside"
    kind = answer_type(answer)
    return None if kind in types else f"answer_{kind}"


def written(row: Row, problem: Problem, fields: Fields, number: int) -> Row:
    """What is written of a row."""
    turns = [*problem.context, {"role": "user", "content": problem.question}]
    question = turns if problem.context else problem.question
    record: Row = {"id": f"row-{number:06d}", "question": question, "answer": problem.answer}
    level = None if fields.difficulty is None else level_of(value_at(row, fields.difficulty))
    if level is not None:
        record["difficulty"] = level
    for name in CARRIED:
        value = problem.columns.get(name)
        if value and isinstance(value, str | list | dict) and usable(json.dumps(value, ensure_ascii=False)):
            record[name] = value
    return record | {"answer_type": answer_type(problem.answer), "row": number}


def row_digest(question: str, answer: str) -> str:
    """What identifies a row by its content."""
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()
