r"""Products without a sign between their factors, which math-verify takes for mixed numbers.

It adds a whole number to the rational that follows it, so that ``3(7)`` is 10, ``2\binom{4}{2}`` is 8 and
``\frac{4}{2}(3)`` is 5. The one sum that people write like that is ``1\frac{1}{2}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:[.,][0-9]+)*|.", re.DOTALL)
#: What stands between two factors and changes nothing.
_NOTHING = re.compile(r"\s|~|\\[,!:; ]|\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|thinspace)", re.DOTALL)
_FRACTION = re.compile(r"\\(?:[dtc]?frac|[dt]?binom)")
#: What follows the whole number of a mixed one.
_MIXED = re.compile(r"(?:\s|\\[,!])*\\[dtc]?frac\s*(?:\d\s*\d(?!\d)|(?:\d|\{\s*\d+\s*\})\s*(?:\d|\{\s*\d+\s*\}))")
_DERIVATIVE = re.compile(r"\\[dtc]?frac\s*\{?\s*(?:d(?![A-Za-z])|\\partial|\\(?:mathrm|text)\s*\{\s*d\s*\})")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_OPENING = {"(": "round", "[": "round", "{": "group", r"\{": "set"}
_CLOSING = {")": "round", "]": "round", "}": "group", r"\}": "set"}
_OPERATOR_NAMES = """cdot times div pm mp le leq ge geq lt gt ne neq in cup cap setminus to circ degree infty
    lfloor rfloor lceil rceil lvert rvert vert quad qquad"""
_TEXT_NAMES = "text mbox mathrm textrm textbf mathbf textit mathit operatorname"
#: Commands between values; any other may be a function, whose argument comes next.
_OPERATORS = frozenset(rf"\{name}" for name in _OPERATOR_NAMES.split())
_TEXTS = frozenset(rf"\{name}" for name in _TEXT_NAMES.split())


def products_spelled_out(text: str) -> str:
    r"""The text with ``\cdot`` between a number, a bracket, a fraction or a binomial and the factor behind it.

    Args:
        text: an answer as LaTeX; one whose brackets do not match stays as it is.
    """
    if not any(mark in text for mark in ("(", "[", "{", "\\")):
        return text  # as most answers
    answer = _Answer([(match[0], match.start(), match.end()) for match in _TOKEN.finditer(text)])
    if not answer.match_brackets():
        return text
    answer.read(text)
    cuts = [0, *sorted(answer.cuts), len(text)]
    return r"\cdot ".join(text[start:end] for start, end in pairwise(cuts))


@dataclass
class _Before:
    """What stands before the next token: where a factor has ended, and what asks for an argument."""

    factor_end: int | None = None
    number: bool = False
    asks: str = ""

    def now(self, factor_end: int | None, *, number: bool = False, asks: str = "") -> None:
        self.factor_end, self.number, self.asks = factor_end, number, asks


@dataclass
class _Answer:
    """The tokens of a text, each with its start and end, and where signs are missing."""

    tokens: list[tuple[str, int, int]]
    closes: dict[int, int] = field(default_factory=dict)
    several: set[int] = field(default_factory=set)
    cuts: set[int] = field(default_factory=set)
    pending: list[tuple[int, int]] = field(default_factory=list)

    def match_brackets(self) -> bool:
        """Find each bracket's end, and those that hold several values: a point, an interval, a list."""
        opened = list[int]()
        for index, (token, _, _) in enumerate(self.tokens):
            if token in _OPENING:
                opened.append(index)
            elif token in _CLOSING:
                if not opened or _OPENING[self.tokens[opened[-1]][0]] != _CLOSING[token]:
                    return False
                self.closes[opened.pop()] = index
            elif "," in token and token != r"\," and opened and not _THOUSANDS.fullmatch(token):
                self.several.add(opened[-1])
        return not opened

    def read(self, text: str) -> None:
        """Note the cuts of the whole and of what stands in each bracket."""
        self.pending.append((0, len(self.tokens)))
        while self.pending:
            self._piece(*self.pending.pop(), text)

    def _piece(self, first: int, end: int, text: str) -> None:
        before, index = _Before(), first
        while index < end:
            token, _, token_end = self.tokens[index]
            if _NOTHING.fullmatch(token):
                index += 1
            elif index in self.closes:
                index = self._bracket(index, before)
            elif _FRACTION.fullmatch(token):
                index = self._fraction(index, end, before, text)
            else:
                _single(token, token_end, before)
                index += 1

    def _bracket(self, index: int, before: _Before) -> int:
        token, close = self.tokens[index][0], self.closes[index]
        self.pending.append((index + 1, close))
        if before.asks == r"\sqrt" and token == "[":
            return close + 1
        if before.asks and token == "{":
            before.now(None, asks="function" if before.asks in _TEXTS else "")
            return close + 1
        if before.factor_end is not None and index not in self.several:
            self.cuts.add(before.factor_end)
        before.now(None if index in self.several and not before.asks else self.tokens[close][2])
        return close + 1

    def _fraction(self, index: int, end: int, before: _Before, text: str) -> int:
        start = self.tokens[index][1]
        if before.factor_end is not None and not (before.number and _MIXED.match(text, before.factor_end)):
            self.cuts.add(before.factor_end)
        asked, index = bool(before.asks), self._arguments(index + 1, end)
        derivative = _DERIVATIVE.match(text, start) is not None
        before.now(None if asked or derivative else self.tokens[index - 1][2], asks="function" if derivative else "")
        return index

    def _arguments(self, index: int, end: int) -> int:
        r"""Read two arguments; ``\frac12`` has both in one token."""
        missing = 2
        while missing > 0 and index < end:
            token = self.tokens[index][0]
            if index in self.closes:
                self.pending.append((index + 1, self.closes[index]))
                index = self.closes[index]
            if not _NOTHING.fullmatch(token):
                missing -= len(token) if token[0] in "0123456789" else 1
            index += 1
        return index


def _single(token: str, end: int, before: _Before) -> None:
    """A token that is no bracket and no fraction."""
    if token[0] in "0123456789":
        before.now(None if before.asks else end, number=True)
    elif token in "^_":
        before.now(None, asks="script")
    else:
        asks = token.isalpha() or (token[1:].isalpha() and token not in _OPERATORS)
        before.now(None, asks=token if asks else "")
