r"""Cuts a response into reasoning steps and says which step each token belongs to.

A step begins at a new line, at an enumeration mark (``2.``, ``(3)``, ``- ``, ``Step 4:``) and at a new sentence. What
stands in mathematics (``$...$``, ``\(...\)``, ``\[...\]``) is never cut, nor are decimals and common abbreviations.
The steps tile the text: white space belongs to the step before it.

One rule for tokens across a boundary: a token belongs to the step of its first character that is no white space; a
token of white space alone belongs to the step before it; a token without text (the end token) belongs to none.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nemo_uecr.errors import DataError

Array = np.ndarray

NO_STEP = -1
#: Bytes of one character that tokens may share.
LONGEST_CHARACTER = 8
_MATH = re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_LINE = re.compile(r"\n\s*")
_MARK = re.compile(r"(?:(?<=[.!?:;,])\s+(?=(?:\(\d{1,2}\)|\d{1,2}[.)]|[-*•])\s))|(?<!\S)(?=Step\s+\d{1,3}\s*[:.])")
_SENTENCE = re.compile(r"[.!?][\"')\]*]*\s+(?=[A-Z\\$(\[\"'*])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|cf|vs|resp|Fig|Eq|Eqs|Dr|Mr|Mrs|No|approx)|\b[A-Z])\.$")
#: A sentence that is an enumeration mark alone: the step goes on behind it.
_ONLY_MARK = re.compile(r"\s*(?:[-*•]\s*)?(?:\(?\d{1,2}[.)]|Step\s+\d{1,3}\s*[.:])\s*")
_BOXED = re.compile(r"\\boxed\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


@dataclass(frozen=True)
class Step:
    """A step as a span of the text."""

    start: int
    end: int

    def text(self, response: str) -> str:
        """What a judge reads."""
        return response[self.start : self.end].strip()


def segment(response: str) -> list[Step]:
    """The steps of a response, in order; none for a response of white space."""
    shielded = [(found.start(), found.end()) for found in _MATH.finditer(response)]
    cuts = {found.end() for found in _LINE.finditer(response)}
    cuts |= {found.end() for found in _MARK.finditer(response)}
    sentences = sorted(found.end() for found in _SENTENCE.finditer(response) if not _abbreviated(response, found))
    cuts = {cut for cut in cuts if not _inside(cut, shielded)}
    for cut in sentences:
        begin = max((other for other in cuts if other < cut), default=0)
        if not _inside(cut, shielded) and not _ONLY_MARK.fullmatch(response[begin:cut]):
            cuts.add(cut)
    ends = [*sorted(cut for cut in cuts if 0 < cut < len(response)), len(response)]
    return _without_blank(response, ends)


def is_reasoning_free(response: str) -> bool:
    """Whether nothing but boxed answers, signs and white space is there."""
    return not re.search(r"[^\W_]", _BOXED.sub("", response))


def token_steps(response: str, steps: Sequence[Step], token_ids: Sequence[int], tokenizer: Any) -> Array:
    """[N] number of each token's step, counted from 0; `NO_STEP` for a token without text.

    Args:
        response: the text without special tokens.
        steps: its steps.
        token_ids: the tokens that were scored, from the first on.
        tokenizer: decodes them.

    Raises:
        DataError: If the tokens do not spell the text.
    """
    starts = [step.start for step in steps]
    numbers: list[int] = []
    at = 0
    for piece, first_of_character in _pieces(token_ids, tokenizer):
        if not piece:
            numbers.append(numbers[-1] if numbers and not first_of_character else NO_STEP)
            continue
        if not response.startswith(piece, at):
            raise DataError(
                f"token {len(numbers)} spells {piece!r} where the response has {response[at : at + 20]!r}; expected "
                "the tokenizer that the response was sampled with"
            )
        lead = len(piece) - len(piece.lstrip())
        place = at + (lead if lead < len(piece) else 0)
        numbers.append(max(0, bisect.bisect_right(starts, place) - 1) if steps else NO_STEP)
        at += len(piece)
    return np.asarray(numbers, dtype=np.int64)


def _pieces(token_ids: Sequence[int], tokenizer: Any) -> list[tuple[str, bool]]:
    """Text of each token and whether a character begins in it; a character's later tokens have no text of their own."""
    special = set(tokenizer.all_special_ids)
    known: dict[int, str] = {}
    pieces: list[tuple[str, bool]] = []
    index = 0
    while index < len(token_ids):
        token = token_ids[index]
        if token not in known:
            known[token] = "" if token in special else tokenizer.decode([token])
        text, width = known[token], 1
        if "\ufffd" in text:
            text, width = _whole_character(token_ids[index : index + LONGEST_CHARACTER], tokenizer)
        pieces += [(text, True), *[("", False)] * (width - 1)]
        index += width
    return pieces


def _whole_character(token_ids: Sequence[int], tokenizer: Any) -> tuple[str, int]:
    """The fewest tokens that decode without a broken character; the first alone where none do."""
    for width in range(2, len(token_ids) + 1):
        text: str = tokenizer.decode(list(token_ids[:width]))
        if "\ufffd" not in text:
            return text, width
    return tokenizer.decode([token_ids[0]]), 1


def _abbreviated(response: str, found: re.Match[str]) -> bool:
    return _ABBREVIATION.search(response[max(0, found.start() - 8) : found.start() + 1]) is not None


def _inside(place: int, spans: Sequence[tuple[int, int]]) -> bool:
    index = bisect.bisect_left(spans, (place, 0)) - 1
    return index >= 0 and place < spans[index][1]


def _without_blank(response: str, ends: Sequence[int]) -> list[Step]:
    """Steps between the ends; a blank one is added to the step before it, or to the first."""
    steps: list[Step] = []
    start = 0
    for end in ends:
        if response[start:end].strip():
            steps.append(Step(start, end))
            start = end
        elif steps:
            steps[-1] = Step(steps[-1].start, end)
            start = end
    return steps
