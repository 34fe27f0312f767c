"""Compares two answers by math-verify, without a time limit: `worker` runs it where it can be killed."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from nemo_uecr.verifier.numbers import powers_spelled_out
from nemo_uecr.verifier.single import readable
from nemo_uecr.verifier.verdict import Verdict

_LETTER = re.compile(r"[A-Za-z]")
#: What joins the steps of a derivation, or the lines of an answer.
_CHAIN = re.compile(
    r"=|\\(?:to|rightarrow|longrightarrow|Rightarrow|Longrightarrow|implies|iff|therefore|mapsto)(?![A-Za-z])|\\\\"
)
#: Commands that say how a number is written; any other may name an unknown.
_ARITHMETIC = re.compile(r"\\(?:[dtc]?frac|sqrt|times|cdot|div|binom|left|right|pi|pm|displaystyle)(?![A-Za-z])")


def compare(given: str, expected: str) -> Verdict:
    r"""Whether two answers are the same number, expression, set, interval or matrix.

    Args:
        given: the response's answer, without ``\boxed``.
        expected: the reference answer, without ``\boxed``.
    """
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    try:
        pair = readable(given, expected)
        if pair is None:
            return Verdict.WRONG
        given, expected = pair
        if given.split() == expected.split():
            return Verdict.CORRECT
        same = _same(given, expected) and not _contradicts_itself(given, expected)
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, NotImplementedError, MemoryError):
        return Verdict.ERROR
    except RecursionError:
        return Verdict.ERROR
    return Verdict.CORRECT if same else Verdict.WRONG


def _same(given: str, expected: str) -> bool:
    import math_verify

    parsed = [_parsed(expected), _parsed(given)]
    if not parsed[0] or not parsed[1]:
        return False
    return bool(math_verify.verify(parsed[0], parsed[1], timeout_seconds=None, raise_on_error=True))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> list[Any]:
    r"""math-verify's reading; a reference answer is read once for all the responses to its problem.

    The whole box as LaTeX, or nothing: left to itself it would search a box that it cannot read for a fraction or a
    number, and take ``!8, \frac{7}{2}`` for 7/2 and ``8._x, 7`` for 7.
    """
    import math_verify

    whole_box = math_verify.LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    found: list[Any] = math_verify.parse(
        rf"\boxed{{{powers_spelled_out(text)}}}",
        extraction_config=[whole_box],
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=True,
    )
    return found


def _contradicts_itself(given: str, expected: str) -> bool:
    r"""Whether one side of the given equation is another number: ``5=7`` and ``5\to 7`` are no way of saying 7.

    math-verify reads the last side of an equation or chain as the answer, so a response could name several.
    """
    if _CHAIN.search(expected) or not _CHAIN.search(given) or r"\begin" in given:
        return False
    sides = [side for side in _CHAIN.split(powers_spelled_out(given)) if side.strip()]
    return any(not _same(side, expected) for side in sides if not _LETTER.search(_ARITHMETIC.sub("", side)))
