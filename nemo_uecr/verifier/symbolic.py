"""Compares two answers by math-verify, without a time limit: `worker` runs it where it can be killed."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from nemo_uecr.verifier.equations import is_equation, value_of_named, value_without_names, values_of
from nemo_uecr.verifier.numbers import powers_spelled_out
from nemo_uecr.verifier.precision import precise
from nemo_uecr.verifier.single import readable
from nemo_uecr.verifier.symbols import other_case
from nemo_uecr.verifier.verdict import Verdict

#: What joins the steps of a derivation, or the lines of an answer.
_CHAIN = re.compile(
    r"\\(?:to|rightarrow|longrightarrow|Rightarrow|Longrightarrow|implies|iff|therefore|mapsto)(?![A-Za-z])|\\\\"
)


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
        same = _all_same(given, expected)
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, NotImplementedError, MemoryError):
        return Verdict.ERROR
    except RecursionError:
        return Verdict.ERROR
    return Verdict.CORRECT if same else Verdict.WRONG


def _all_same(given: str, expected: str) -> bool:
    r"""Whether every value that the answer names is the reference answer: ``5=7`` and ``2x=7`` are no way of saying 7.

    math-verify reads the last side of an equation as the answer, so a response could name several.
    """
    if _CHAIN.search(given) and not _CHAIN.search(expected) and r"\begin" not in given:
        return False
    if is_equation(expected) and not is_equation(given):
        value = value_without_names(expected)
        return value is not None and _same(given, value)
    named = value_of_named(expected)
    if named is not None and "=" in given:
        ours = value_of_named(given)
        return ours is not None and ours[0] == named[0] and _same(ours[1], named[1])
    values = values_of(given, expected if named is None else named[1])
    return values is not None and all(_same(value, expected if named is None else named[1]) for value in values)


def _same(given: str, expected: str) -> bool:
    import math_verify

    if other_case(powers_spelled_out(given), powers_spelled_out(expected)):
        return False
    parsed = [_parsed(expected), _parsed(given)]
    if not parsed[0] or not parsed[1]:
        return False
    if not math_verify.verify(parsed[0], parsed[1], timeout_seconds=None, raise_on_error=True):
        return False
    return precise(parsed[0][0], parsed[1][0])


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
