"""Judges the rows of a training source: kept, held for a person, or removed with a named reason."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nemo_uecr.data.problems import (
    CARRIED,
    Fields,
    UnreadableRow,
    kind_of,
    level_of,
    problem_of,
    rows_of,
    usable,
    value_at,
)
from nemo_uecr.data.screening import Finding, Screen, Text
from nemo_uecr.data.sources import Row, Source
from nemo_uecr.errors import DataError

#: Part of every manifest; raised when the same source and settings would give other rows.
FILTER_VERSION = "4"

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


@dataclass(frozen=True)
class Judged:
    """What became of one row."""

    row: int  # place in the source, from 1
    digest: str  # of question and answer as they stand in the source
    reason: str | None  # why it was removed; None when it was kept or is held
    finding: Finding | None  # the benchmark problem it matches, also when held
    record: dict[str, object]  # the row as it is written; empty when removed before screening
    key: bytes  # 16 bytes that are equal for two rows with the same question
    unread: bool = False  # whether the reason is that the row could not be read


@dataclass(frozen=True)
class RowFilter:
    """All rules together."""

    fields: Fields
    difficulty: tuple[float, float] | None  # lowest and highest difficulty, both included; None takes every row
    types: frozenset[str]  # answer types that are kept
    screen: Screen

    def judge(self, number: int, row: Row) -> Judged:
        """Apply the rules in order; the first that fails names the reason."""
        try:
            problem = problem_of(row, self.fields, number)
            difficulty = None if self.fields.difficulty is None else level_of(value_at(row, self.fields.difficulty))
            reason = self._refused(problem.answer, difficulty, row)
        except UnreadableRow as error:
            texts = (str(value_at(row, name)) for name in (self.fields.question, self.fields.answer))
            return Judged(number, row_digest(*texts), str(error), None, {}, b"", unread=True)
        digest = row_digest(problem.question, problem.answer)
        if reason is not None:
            return Judged(number, digest, reason, None, {}, b"")
        text = Text.of(problem.question)
        finding = self.screen.find(text)
        if finding is not None and finding.certain:
            reason = f"screen_{finding.method}"
        question = [*problem.context, {"role": "user", "content": problem.question}]
        record: dict[str, object] = {
            "id": f"row-{number:06d}",
            "question": question if problem.context else problem.question,
            "answer": problem.answer,
        }
        if difficulty is not None:
            record["difficulty"] = difficulty
        carried = {name: row.get(name) for name in CARRIED}
        record |= {name: value for name, value in carried.items() if isinstance(value, str) and usable(value)}
        record |= {"answer_type": answer_type(problem.answer), "row": number}
        key = hashlib.blake2b(text.key.encode(), digest_size=16).digest()
        return Judged(number, digest, reason, finding, record, key)

    def _refused(self, answer: str, difficulty: float | None, row: Row) -> str | None:
        if self.difficulty is not None:
            if difficulty is None:
                given = value_at(row, str(self.fields.difficulty))
                missing = f"{self.fields.difficulty} is {kind_of(given)}, expected a number"
                raise UnreadableRow("difficulty_missing" if given in (None, "") else missing)
            low, high = self.difficulty
            if not low <= difficulty <= high:
                return "difficulty_outside"
        kind = answer_type(answer)
        return None if kind in self.types else f"answer_{kind}"


def row_digest(question: str, answer: str) -> str:
    """What identifies a row by its content."""
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()


def judged_rows(source: Source, rules: RowFilter) -> Iterator[Judged]:
    """Every row of a source, judged, in its order."""
    for number, (_, row) in enumerate(rows_of(source, rules.fields), start=1):
        yield rules.judge(number, row)
