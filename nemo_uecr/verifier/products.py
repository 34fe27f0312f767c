r"""Products without a sign between their factors, which math-verify takes for mixed numbers.

It adds a whole number to the rational that follows it, so that ``3(7)`` is 10, ``2\binom{4}{2}`` is 8 and
``\frac{4}{2}(3)`` is 5. The one sum that people write like that is ``1\frac{1}{2}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

_SPACE = r"(?:\s|\\[,!])*"
_FRACTION = r"\\(?:[dtc]?frac|[dt]?binom)(?![A-Za-z])"
_TWO_ARGUMENTS = re.compile(_FRACTION)
#: Not the 2 of ``\log_2(8)`` or ``\frac12``.
_NUMBER = re.compile(r"(?<![A-Za-z\d.^_\\])\d+(?:\.\d+)?(?![\d.])")
#: A bracket around one value; one around several is a point or an interval.
_BRACKET = r"(?:\\left\s*)?[(\[][^(),\[\]]*[)\]]"
_AFTER_NUMBER = re.compile(rf"{_SPACE}(?:{_BRACKET}|\\[dt]?binom(?![A-Za-z]))")
_AFTER_VALUE = re.compile(rf"{_SPACE}(?:{_BRACKET}|{_FRACTION})")


def products_spelled_out(text: str) -> str:
    r"""The text with ``\cdot`` between a number, a bracket, a fraction or a binomial and the factor behind it.

    Args:
        text: an answer as LaTeX.
    """
    places = {match.end() for match in _NUMBER.finditer(text) if _AFTER_NUMBER.match(text, match.end())}
    places |= {end for end in _values_end(text) if _AFTER_VALUE.match(text, end)}
    cuts = [0, *sorted(places), len(text)]
    return r"\cdot ".join(text[start:end] for start, end in pairwise(cuts))


def _values_end(text: str) -> Iterator[int]:
    """Where a bracket or the second argument of a fraction ends."""
    yield from (match.end() for match in re.finditer(r"\)", text))
    for match in _TWO_ARGUMENTS.finditer(text):
        end = _argument_end(text, _argument_end(text, match.end()))
        if end:
            yield end


def _argument_end(text: str, start: int) -> int:
    """Where the argument ends that begins at ``start`` or after blanks; 0 where there is none."""
    start += len(text[start:]) - len(text[start:].lstrip())
    if start >= len(text) or start == 0:
        return 0
    if text[start] != "{":
        return start + 1 if text[start].isdigit() else 0
    depth = 0
    for place in range(start, len(text)):
        if text[place] in "{}" and text[place - 1] != "\\":
            depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return place + 1
    return 0
