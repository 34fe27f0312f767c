"""Judges the rows of a training source: kept, held for a person, or removed with a named reason.

A source is judged in chunks on several processes, in order, with a bounded number of chunks under way.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from nemo_uecr.data.problems import CARRIED, Fields, Row, parse_row, raw_lines, read_rows, text_of, usable
from nemo_uecr.data.screening import Finding, Screen, ScreenRules, Target, exact_key, normalised, tight_key
from nemo_uecr.errors import DataError

#: Part of every manifest; raised when the same source and settings would give other rows.
FILTER_VERSION = "3"
#: Above any difficulty; NaN, infinity and integers beyond floating point are none.
HARDEST = 1e9
CHUNK_ROWS = 512
#: Chunks waiting for each process; bounds memory however long the source is.
AHEAD = 3
#: Seconds between two looks at whether the parent still lives.
PARENT_CHECK = 0.5

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
    """The names as a set.

    Raises:
        DataError: naming the first that is no answer type.
    """
    for name in names:
        if name not in NAMES:
            raise DataError(f"{option}: got {name!r}; expected some of {', '.join(NAMES)}")
    return frozenset(names)


@dataclass(frozen=True)
class Work:
    """What a process needs to judge rows.

    Attributes:
        fields: the source's field names.
        difficulty: lowest and highest difficulty, both included; None takes every row.
        types: answer types that are kept.
        targets: benchmark problems to screen against.
        screen: thresholds of the screening.
    """

    fields: Fields
    difficulty: tuple[float, float] | None
    types: frozenset[str]
    targets: tuple[Target, ...]
    screen: ScreenRules


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

    def __init__(self, work: Work) -> None:
        self._work = work
        self._screen = Screen(work.targets, work.screen)

    def judge(self, number: int, row: Row) -> Judged:
        """Apply the rules in order; the first that fails names the reason."""
        fields = self._work.fields
        question, answer = text_of(row.get(fields.question)), text_of(row.get(fields.answer))
        digest = row_digest(question or "", answer or "")
        difficulty = _difficulty(row, fields)
        reason = self._refused(question, answer, difficulty)
        if reason is not None or question is None or answer is None:
            return Judged(number, digest, reason, None, {}, b"")
        plain = normalised(question)
        key = exact_key(plain)
        finding = self._screen.find(plain, key, tight_key(question))
        if finding is not None and finding.certain:
            reason = f"screen_{finding.method}"
        record: dict[str, object] = {"id": f"row-{number:06d}", "question": question, "answer": answer}
        if difficulty is not None:
            record["difficulty"] = difficulty
        for name in CARRIED:
            value = row.get(name)
            if isinstance(value, str) and usable(value):
                record[name] = value
        record |= {"answer_type": answer_type(answer), "row": number}
        return Judged(number, digest, reason, finding, record, hashlib.blake2b(key.encode(), digest_size=16).digest())

    def _refused(self, question: str | None, answer: str | None, difficulty: float | None) -> str | None:
        if question is None:
            return "question_missing"
        if answer is None:
            return "answer_missing"
        if self._work.difficulty is not None:
            if difficulty is None:
                return "difficulty_missing"
            low, high = self._work.difficulty
            if not low <= difficulty <= high:
                return "difficulty_outside"
        kind = answer_type(answer)
        return None if kind in self._work.types else f"answer_{kind}"


def row_digest(question: str, answer: str) -> str:
    """What identifies a row by its content."""
    return hashlib.sha256(json.dumps([question, answer]).encode()).hexdigest()


def _difficulty(row: Row, fields: Fields) -> float | None:
    value = None if fields.difficulty is None else row.get(fields.difficulty)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < HARDEST:
        return None
    return float(value)


# Chunks on several processes.


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows, parsed or as lines of JSONL; `first` is the number of the first row in the source."""

    first: int
    rows: Sequence[tuple[str, bytes | Row]]


def judged_rows(files: Sequence[Path], work: Work, *, workers: int) -> Iterator[Judged]:
    """Every row of the files, judged, in the order of the source.

    Args:
        files: the source's files.
        work: the rules.
        workers: processes; 1 judges in this one.
    """
    if workers == 1:
        rules = RowFilter(work)
        for chunk in _chunks(files, work.fields):
            yield from _judge(rules, chunk)
        return
    # Not forked: a parent with threads (a progress bar, a loaded torch) may hold locks that a fork would inherit.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(work, os.getpid())) as pool:
        waiting: deque[Future[list[Judged]]] = deque()
        for chunk in _chunks(files, work.fields):
            waiting.append(pool.submit(_judge_in_worker, chunk))
            if len(waiting) >= AHEAD * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _chunks(files: Sequence[Path], fields: Fields) -> Iterator[Chunk]:
    first = 1
    rows = chain.from_iterable(_rows(file, fields) for file in files)
    while batch := list(islice(rows, CHUNK_ROWS)):
        yield Chunk(first, batch)
        first += len(batch)


def _rows(file: Path, fields: Fields) -> Iterator[tuple[str, bytes | Row]]:
    """Lines of JSONL are parsed where they are judged, which is most of the work."""
    if file.suffix == ".parquet":
        yield from (("", row) for row in read_rows(file, columns=fields.names))
    else:
        yield from ((f"{file}:{number}", line) for number, line in raw_lines(file))


def _judge(rules: RowFilter, chunk: Chunk) -> list[Judged]:
    return [
        rules.judge(number, parse_row(row, where) if isinstance(row, bytes) else row)
        for number, (where, row) in enumerate(chunk.rows, start=chunk.first)
    ]


_rules: RowFilter


def _start(work: Work, parent: int) -> None:
    global _rules
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _rules = RowFilter(work)


def _end_with(parent: int) -> None:
    """End this process when its parent has: a killed one cannot tell its workers, which would wait for ever."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK)
    os._exit(1)


def _judge_in_worker(chunk: Chunk) -> list[Judged]:
    return _judge(_rules, chunk)
