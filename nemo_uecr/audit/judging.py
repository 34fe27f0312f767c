r"""What a blinded judge reads and writes: pairs of responses for `audit signal`, steps for `audit localization`.

The judge sees problem, reference answer and responses under names that tell nothing. Which responses they are stands in
``key.jsonl``, which the judge does not get. The judge writes one JSON object a line::

    {"pair": "9c0f...", "preferred": "first"}                                   # or second, tie, unjudgeable
    {"item": "41d2...", "labels": ["valid", "invalid", "uncertain", "not_reasoning"], "first_error": 2}

with one label a step, and the number of the first substantive error (from 1) or null.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from nemo_uecr.audit.groups import group_table
from nemo_uecr.audit.segment import segment
from nemo_uecr.audit.sources import read_rows
from nemo_uecr.audit.store import Scores
from nemo_uecr.errors import DataError
from nemo_uecr.files import replace_file

PAIRS, STEPS, KEY = "pairs.jsonl", "steps.jsonl", "key.jsonl"
VALID, INVALID = "valid", "invalid"


class _Named(BaseModel):
    """A line about one pair or item."""

    model_config = ConfigDict(strict=True)


class _PairKey(_Named):
    name: str = Field(alias="pair")
    first: str
    second: str


class _Preference(_Named):
    name: str = Field(alias="pair")
    preferred: Literal["first", "second", "tie", "unjudgeable"]


class _ItemKey(_Named):
    name: str = Field(alias="item")
    response: str
    steps: int


class _ItemLabels(_Named):
    name: str = Field(alias="item")
    labels: tuple[Literal["valid", "invalid", "uncertain", "not_reasoning"], ...]
    first_error: int | None = None


Verdict = TypeVar("Verdict", _Preference, _ItemLabels)
Known = TypeVar("Known", _PairKey, _ItemKey)


def _verdicts(
    verdicts: Path, key: Path, kinds: tuple[type[Verdict], type[Known]]
) -> Iterator[tuple[str, Verdict, Known]]:
    """Place, verdict and key of each line of a judge's file; the judge may leave out some of what the key names.

    Raises:
        DataError: naming file and line.
    """
    known = {row.name: row for _, row in read_rows(key, kinds[1])}
    seen: set[str] = set()
    for place, row in read_rows(verdicts, kinds[0]):
        if row.name not in known:
            raise DataError(f"{place}: {row.name!r} is not in {key}; expected the key of these verdicts")
        if row.name in seen:
            raise DataError(f"{place}: {row.name!r} was judged above; expected one verdict each")
        seen.add(row.name)
        yield place, row, known[row.name]
    if not seen:
        raise DataError(f"{verdicts} is empty; expected one verdict a line")


def _write(folder: Path, name: str, shown: Sequence[Mapping[str, Any]], key: Sequence[Mapping[str, str | int]]) -> None:
    """Write what the judge gets and the key.

    Raises:
        DataError: The folder has another judgement, whose verdicts would be lost without its key.
    """
    contents = {
        folder / file: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        for file, rows in ((name, shown), (KEY, key))
    }
    for path, content in contents.items():
        if path.exists() and path.read_bytes() != content:
            raise DataError(f"{path} belongs to another judgement; choose another folder")
    for path, content in contents.items():
        replace_file(path, content)


def _blind_name(seed: int, *responses: str) -> str:
    """A name that tells the judge nothing; the same for the same seed and responses."""
    return hashlib.sha256(":".join((str(seed), *responses)).encode()).hexdigest()[:16]


# Pairs


@dataclass(frozen=True)
class JudgedPair:
    """A judge's word on two responses of one verifier-degenerate group."""

    first: str
    second: str
    preferred: str


def write_pairs(scores: Scores, folder: Path, *, pairs: int, seed: int) -> int:
    """Write pairs to judge, and their key: two different texts of each of randomly chosen degenerate groups.

    Returns:
        How many pairs were written: fewer than asked where there are fewer such groups.

    Raises:
        DataError: The folder has another judgement.
    """
    table, generator = group_table(scores.responses), np.random.default_rng(seed)
    columns = {name: scores.column(name) for name in ("question", "answer", "response")}
    shown: list[dict[str, Any]] = []
    key: list[dict[str, str | int]] = []
    for group in generator.permutation(np.flatnonzero(~table.mixed_P)):
        first, *others = generator.permutation(np.flatnonzero(table.index_B == group))
        different = [each for each in others if columns["response"][each] != columns["response"][first]]
        if not different or len(shown) == pairs:
            continue
        two = {"first": first, "second": different[0]}
        ids = {which: scores.responses.ids[row] for which, row in two.items()}
        name = {"pair": _blind_name(seed, *ids.values())}
        problem = {"question": columns["question"][first], "answer": columns["answer"][first]}
        shown.append(name | problem | {which: columns["response"][row] for which, row in two.items()})
        key.append(name | ids)
    _write(folder, PAIRS, shown, key)
    return len(shown)


def read_pairs(verdicts: Path, key: Path) -> list[JudgedPair]:
    """A judge's preferences, joined with the key.

    Raises:
        DataError: naming file and line.
    """
    found = _verdicts(verdicts, key, (_Preference, _PairKey))
    return [JudgedPair(pair.first, pair.second, row.preferred) for _, row, pair in found]


# Steps


@dataclass(frozen=True)
class Labels:
    """A judge's word on one response: a label a step, and the first error's number from 0, None without one."""

    labels: tuple[str, ...]
    first_error: int | None


@dataclass(frozen=True)
class Item:
    """What a judge is shown of one response, and whose it is."""

    response_id: str
    question: str
    answer: str
    response: str


def write_items(items: Sequence[Item], folder: Path, *, seed: int) -> int:
    """Write the numbered steps of each item in random order, and their key.

    Returns:
        How many steps there are.

    Raises:
        DataError: The folder has another judgement.
    """
    shown: list[dict[str, Any]] = []
    key: list[dict[str, str | int]] = []
    for place in np.random.default_rng(seed).permutation(len(items)):
        item = items[place]
        name = _blind_name(seed, item.response_id)
        steps = [{"number": n, "text": step.text(item.response)} for n, step in enumerate(segment(item.response), 1)]
        shown.append({"item": name, "question": item.question, "answer": item.answer, "steps": steps})
        key.append({"item": name, "response": item.response_id, "steps": len(steps)})
    _write(folder, STEPS, shown, key)
    return sum(len(row["steps"]) for row in shown)


def read_labels(verdicts: Path, key: Path) -> dict[str, Labels]:
    """The judge's labels by response; an item that the judge left out has none.

    Raises:
        DataError: naming file and line.
    """
    found: dict[str, Labels] = {}
    for place, row, item in _verdicts(verdicts, key, (_ItemLabels, _ItemKey)):
        if len(row.labels) != item.steps:
            raise DataError(f"{place}: {len(row.labels)} labels; expected {item.steps}, one a step")
        first = row.labels.index(INVALID) if INVALID in row.labels else None
        if row.first_error is not None and row.first_error - 1 != first:
            raise DataError(f"{place}: first_error is {row.first_error}; expected the first step labelled {INVALID!r}")
        found[item.response] = Labels(row.labels, None if row.first_error is None else first)
    return found
