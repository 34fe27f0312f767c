"""Judges the rows of a training source: kept, held for a person, or removed with a named reason."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from nemo_uecr.data.problems import CARRIED, Fields, Row, read_rows, text_of, usable
from nemo_uecr.data.screening import Finding, Screen, Text
from nemo_uecr.errors import DataError

#: Part of every manifest; raised when the same source and settings would give other rows.
FILTER_VERSION = "3"
#: Above any difficulty; NaN, infinity and integers beyond floating point are none.
HARDEST = 1e9

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


@dataclass(frozen=True)
class RowFilter:
    """All rules together."""

    fields: Fields
    difficulty: tuple[float, float] | None  # lowest and highest difficulty, both included; None takes every row
    types: frozenset[str]  # answer types that are kept
    screen: Screen

    def judge(self, number: int, row: Row) -> Judged:
        """Apply the rules in order; the first that fails names the reason."""
        question, answer = text_of(row.get(self.fields.question)), text_of(row.get(self.fields.answer))
        digest = row_digest(question or "", answer or "")
        difficulty = _difficulty(row, self.fields)
        reason = self._refused(question, answer, difficulty)
        if reason is not None or question is None or answer is None:
            return Judged(number, digest, reason, None, {}, b"")
        text = Text.of(question)
        finding = self.screen.find(text)
        if finding is not None and finding.certain:
            reason = f"screen_{finding.method}"
        record: dict[str, object] = {"id": f"row-{number:06d}", "question": question, "answer": answer}
        if difficulty is not None:
            record["difficulty"] = difficulty
        carried = {name: row.get(name) for name in CARRIED}
        record |= {name: value for name, value in carried.items() if isinstance(value, str) and usable(value)}
        record |= {"answer_type": answer_type(answer), "row": number}
        key = hashlib.blake2b(text.key.encode(), digest_size=16).digest()
        return Judged(number, digest, reason, finding, record, key)

    def _refused(self, question: str | None, answer: str | None, difficulty: float | None) -> str | None:
        if question is None:
            return "question_missing"
        if answer is None:
            return "answer_missing"
        if self.difficulty is not None:
            if difficulty is None:
                return "difficulty_missing"
            low, high = self.difficulty
            if not low <= difficulty <= high:
                return "difficulty_outside"
        kind = answer_type(answer)
        return None if kind in self.types else f"answer_{kind}"


def row_digest(question: str, answer: str) -> str:
    """What identifies a row by its content."""
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()


def _difficulty(row: Row, fields: Fields) -> float | None:
    value = None if fields.difficulty is None else row.get(fields.difficulty)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < HARDEST:
        return None
    return float(value)


def judged_rows(files: Sequence[Path], rules: RowFilter) -> Iterator[Judged]:
    """Every row of the files, judged, in the order of the source."""
    rows = chain.from_iterable(read_rows(file, fields=rules.fields) for file in files)
    for number, row in enumerate(rows, start=1):
        yield rules.judge(number, row)
