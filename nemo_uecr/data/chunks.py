"""Judges a source in chunks on several processes, in order, with a bounded number of chunks under way."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from nemo_uecr.data.filters import Judged, RowFilter, RowRules
from nemo_uecr.data.ngrams import Target
from nemo_uecr.data.rows import Fields, Row, parse_row, raw_lines, read_rows
from nemo_uecr.data.screening import Screen, ScreenRules

CHUNK_ROWS = 512
#: Chunks waiting for each process; bounds memory however long the source is.
AHEAD = 3
#: Seconds between two looks at whether the parent still lives.
PARENT_CHECK = 0.5


@dataclass(frozen=True)
class Work:
    """What a process needs to judge rows."""

    fields: Fields
    rows: RowRules
    targets: tuple[Target, ...]
    screen: ScreenRules

    def filter(self) -> RowFilter:
        """The rules with their indices built."""
        return RowFilter(self.fields, self.rows, Screen(self.targets, self.screen))


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
        rules = work.filter()
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
    _rules = work.filter()


def _end_with(parent: int) -> None:
    """End this process when its parent has: a killed one cannot tell its workers, which would wait for ever."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK)
    os._exit(1)


def _judge_in_worker(chunk: Chunk) -> list[Judged]:
    return _judge(_rules, chunk)
