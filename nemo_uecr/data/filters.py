"""Judges one row of a training source: kept, held for a person, or removed with a named reason."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from nemo_uecr.data.answer_types import answer_type
from nemo_uecr.data.normalise import exact_key, normalised, tight_key
from nemo_uecr.data.rows import CARRIED, Fields, Row
from nemo_uecr.data.screening import Finding, Screen
from nemo_uecr.data.texts import text_of, usable_text

#: Part of every manifest; raised when the same source and settings would give other rows.
FILTER_VERSION = "3"
#: No difficulty is as large; NaN, infinity and integers beyond floating point are none.
HARDEST = 1e9


@dataclass(frozen=True)
class RowRules:
    """Which rows are wanted.

    Attributes:
        difficulty: lowest and highest difficulty, both included; None takes every row.
        types: answer types that are kept.
    """

    difficulty: tuple[float, float] | None
    types: frozenset[str]


@dataclass(frozen=True)
class Judged:
    """What became of one row.

    Attributes:
        row: place in the source, from 1.
        digest: of question and answer as they stand in the source.
        reason: why it was removed; None when it was kept or is held.
        finding: the benchmark problem it matches, also when held.
        record: the row as it is written; empty when removed before screening.
        key: 16 bytes that are equal for two rows with the same question.
    """

    row: int
    digest: str
    reason: str | None
    finding: Finding | None
    record: dict[str, object]
    key: bytes


class RowFilter:
    """All rules together; one a process."""

    def __init__(self, fields: Fields, rules: RowRules, screen: Screen) -> None:
        self._fields = fields
        self._rules = rules
        self._screen = screen

    def judge(self, number: int, row: Row) -> Judged:
        """Apply the rules in order; the first that fails names the reason."""
        question, answer = text_of(row.get(self._fields.question)), text_of(row.get(self._fields.answer))
        digest = row_digest(question or "", answer or "")
        reason = self._refused(row, question, answer)
        if reason is not None or question is None or answer is None:
            return Judged(number, digest, reason, None, {}, b"")
        plain = normalised(question)
        key = exact_key(plain)
        finding = self._screen.find(plain, key, tight_key(question))
        if finding is not None and finding.certain:
            reason = f"screen_{finding.method}"
        record = self._record(number, row, question, answer)
        return Judged(number, digest, reason, finding, record, hashlib.blake2b(key.encode(), digest_size=16).digest())

    def _refused(self, row: Row, question: str | None, answer: str | None) -> str | None:
        if question is None:
            return "question_missing"
        if answer is None:
            return "answer_missing"
        if self._rules.difficulty is not None:
            difficulty = _difficulty(row, self._fields)
            if difficulty is None:
                return "difficulty_missing"
            low, high = self._rules.difficulty
            if not low <= difficulty <= high:
                return "difficulty_outside"
        kind = answer_type(answer)
        return None if kind in self._rules.types else f"answer_{kind}"

    def _record(self, number: int, row: Row, question: str, answer: str) -> dict[str, object]:
        record: dict[str, object] = {"id": f"row-{number:06d}", "question": question, "answer": answer}
        difficulty = _difficulty(row, self._fields)
        if difficulty is not None:
            record["difficulty"] = difficulty
        record |= {name: row[name] for name in CARRIED if usable_text(row.get(name))}
        return record | {"answer_type": answer_type(answer), "row": number}


def row_digest(question: str, answer: str) -> str:
    """What identifies a row by its content."""
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()


def _difficulty(row: Row, fields: Fields) -> float | None:
    if fields.difficulty is None:
        return None
    value = row.get(fields.difficulty)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < HARDEST:
        return None
    return float(value)
