r"""Input and output of a blinded judge: pairs of responses for `audit signal`, steps for `audit localization`.

The judge sees problem, reference answer and responses under random names; ``key.jsonl``, which the judge does not get,
identifies the responses. The judge writes one JSON object per line::

    {"pair": "9c0f...", "preferred": "first"}                                   # or second, tie, unjudgeable
    {"item": "41d2...", "labels": ["valid", "invalid", "uncertain", "not_reasoning"], "first_error": 2}

with one label per step, and the number of the first substantive error (from 1) or null.

A step begins at a new line, at an enumeration mark (``2.``, ``(3)``, ``- ``, ``Step 4:``) and at a new sentence.
Mathematics (``$...$``, ``\(...\)``, ``\[...\]``), decimals and common abbreviations are never split. The steps tile the
text: white space belongs to the step before it.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from nemo_uecr.audit.groups import blind_name, group_table
from nemo_uecr.audit.store import Scored
from nemo_uecr.data.problems import checked_lines
from nemo_uecr.errors import DataError
from nemo_uecr.files import replace_file
from nemo_uecr.stats import Array

PAIRS, STEPS, KEY = "pairs.jsonl", "steps.jsonl", "key.jsonl"
VALID, INVALID = "valid", "invalid"
Row = dict[str, Any]
#: Names of two responses, and the preference: first, second, tie or unjudgeable.
JudgedPair = tuple[str, str, str]


class Preference(BaseModel):
    """A judge's verdict on a pair."""

    model_config = ConfigDict(strict=True)

    name: str = Field(alias="pair")
    preferred: Literal["first", "second", "tie", "unjudgeable"]


class Labels(BaseModel):
    """A judge's labels of one response: one per step, and the number of the first error (from 1; None without one)."""

    model_config = ConfigDict(strict=True)

    name: str = Field(alias="item")
    labels: tuple[Literal["valid", "invalid", "uncertain", "not_reasoning"], ...]
    first_error: int | None = None


Judgement = TypeVar("Judgement", Preference, Labels)


def _verdicts(verdicts: Path, key: Path, kind: type[Judgement]) -> Iterator[tuple[str, Judgement, Row]]:
    """Location, verdict and key row of each line of a judge's file; items without a verdict are left out."""
    known = {next(iter(row.values())): row for row in map(json.loads, key.read_text(encoding="utf-8").splitlines())}
    for place, row in checked_lines(verdicts, kind):
        if row.name not in known:
            raise DataError(f"{place}: {row.name!r} is not in {key} or has a verdict above; expected one each")
        yield place, row, known.pop(row.name)


def _write(folder: Path, name: str, shown: Sequence[Row], key: Sequence[Row]) -> None:
    """Write the judge's items and the key, but never over another key: its verdicts would be lost."""
    files = {
        folder / file: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        for file, rows in ((KEY, key), (name, shown))
    }
    for path, content in files.items():
        if path.exists() and path.read_bytes() != content:
            raise DataError(f"{path} has the items of another judgement; choose another folder")
    for path, content in files.items():
        replace_file(path, content)


# Pairs


def write_pairs(scores: Scored, folder: Path, *, pairs: int, seed: int) -> int:
    """Write pairs to judge and their key: two different texts from each of up to ``pairs`` random degenerate groups.

    Returns the number of pairs.
    """
    table, generator = group_table(scores), np.random.default_rng(seed)
    question, answer, text = (scores.column(name) for name in ("question", "answer", "response"))
    shown, key = list[Row](), list[Row]()
    for group in generator.permutation(np.flatnonzero(~table.mixed_P)):
        first, *others = generator.permutation(np.flatnonzero(table.index_B == group))
        second = next((each for each in others if text[each] != text[first]), None)
        if second is None or len(shown) == pairs:
            continue
        ids = {"first": scores.ids[first], "second": scores.ids[second]}
        name = {"pair": blind_name(seed, *ids.values())}
        problem = {"question": question[first], "answer": answer[first]}
        shown.append(name | problem | {"first": text[first], "second": text[second]})
        key.append(name | ids)
    _write(folder, PAIRS, shown, key)
    return len(shown)


def read_pairs(verdicts: Path, key: Path) -> list[JudgedPair]:
    """The judged pairs of a verdict file."""
    return [(pair["first"], pair["second"], row.preferred) for _, row, pair in _verdicts(verdicts, key, Preference)]


# Steps


def write_steps(scores: Scored, rows: Array, folder: Path, *, seed: int) -> int:
    """Write the numbered steps of some responses in random order, and their key; return the number of steps."""
    question, answer, text = (scores.column(name) for name in ("question", "answer", "response"))
    shown, key = list[Row](), list[Row]()
    for row in np.random.default_rng(seed).permutation(rows):
        name = blind_name(seed, scores.ids[row])
        texts = [text[row][start:end].strip() for start, end in segment(text[row])]
        steps = [{"number": number, "text": each} for number, each in enumerate(texts, 1)]
        shown.append({"item": name, "question": question[row], "answer": answer[row], "steps": steps})
        key.append({"item": name, "response": scores.ids[row], "steps": len(steps)})
    _write(folder, STEPS, shown, key)
    return sum(row["steps"] for row in key)


def read_labels(verdicts: Path, key: Path) -> dict[str, Labels]:
    """The judge's labels by response."""
    labels: dict[str, Labels] = {}
    for place, row, item in _verdicts(verdicts, key, Labels):
        first = row.labels.index(INVALID) + 1 if INVALID in row.labels else None
        if len(row.labels) != item["steps"] or row.first_error not in (None, first):
            raise DataError(
                f"{place}: {len(row.labels)} labels, first_error {row.first_error}; expected {item['steps']} labels, "
                f"one per step, and as first_error null or the first step labelled {INVALID!r}"
            )
        labels[item["response"]] = row
    return labels


# Segmentation

NO_STEP = -1
_MATH = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_LINE = re.compile(r"\n\s*")
_MARK = re.compile(r"(?:(?<=[.!?:;,])\s+(?=(?:\(\d{1,2}\)|\d{1,2}[.)]|[-*•])\s))|(?<!\S)(?=Step\s+\d{1,3}\s*[:.])")
_SENTENCE = re.compile(r"[.!?][\"')\]*]*\s+(?=[A-Z\\$(\[\"'*])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|cf|vs|resp|Fig|Eq|Eqs|Dr|Mr|Mrs|No|approx)|\b[A-Z])\.$")
#: An enumeration mark alone is no sentence: its step continues after it.
_ONLY_MARK = re.compile(r"\s*(?:[-*•]\s*)?(?:\(?\d{1,2}[.)]|Step\s+\d{1,3}\s*[.:])\s*")
_BOXED = re.compile(r"\\boxed\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def segment(response: str) -> list[tuple[int, int]]:
    """Start and end of each step of a response, in order; none for a response of white space."""
    shielded = [match.span() for match in _MATH.finditer(response)]

    def free(cut: int) -> bool:
        return not any(start < cut < end for start, end in shielded)

    cuts = {match.end() for mark in (_LINE, _MARK) for match in mark.finditer(response) if free(match.end())}
    for match in _SENTENCE.finditer(response):
        cut = match.end()
        begin = max((other for other in cuts if other < cut), default=0)
        abbreviated = _ABBREVIATION.search(response[max(0, match.start() - 8) : match.start() + 1])
        if not abbreviated and free(cut) and not _ONLY_MARK.fullmatch(response[begin:cut]):
            cuts.add(cut)
    lead = len(response) - len(response.lstrip())  # belongs to the first step
    starts = [0, *sorted(cut for cut in cuts if lead < cut < len(response))]
    return list(itertools.pairwise([*starts, len(response)])) if response.strip() else []


def is_reasoning_free(response: str) -> bool:
    """Whether the response has no words or numbers outside its boxed answers."""
    return not re.search(r"[^\W_]", _BOXED.sub("", response))


def token_steps(response: str, steps: Sequence[tuple[int, int]], token_ids: Sequence[int], tokenizer: Any) -> Array:
    """[N] step of each token, from 0; `NO_STEP` for a token without text, such as the end token.

    A token across a boundary belongs to the step of its first non-blank character; a blank token belongs to the step
    before it. ``token_ids`` are the scored tokens, whose text without special tokens is a prefix of ``response``.
    """
    from tokenizers.decoders import DecodeStream

    starts, special = [start for start, _ in steps], set(tokenizer.all_special_ids)
    stream = DecodeStream(skip_special_tokens=True)
    step_N = np.full(len(token_ids), NO_STEP)
    first = at = 0
    for place, token in enumerate(token_ids):
        piece = "" if token in special else stream.step(tokenizer.backend_tokenizer, token)
        if piece is None:  # the bytes of one character may be several tokens
            continue
        if not response.startswith(piece, at) and response.startswith(f"\n{piece}", at):  # the next of several turns
            at += 1
        if not response.startswith(piece, at):
            raise DataError(
                f"token {place} is {piece!r} where the response has {response[at : at + 20]!r}; expected the tokenizer "
                "that the response was sampled with"
            )
        if piece and steps:
            lead = len(piece) - len(piece.lstrip())
            begin = at + (lead if lead < len(piece) else 0)
            step_N[first : place + 1] = max(0, bisect.bisect_right(starts, begin) - 1)
        first, at = place + 1, at + len(piece)
    return step_N
