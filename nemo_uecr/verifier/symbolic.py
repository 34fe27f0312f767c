"""Compares two answers by math-verify, without a time limit: `worker` runs it where it can be killed."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from nemo_uecr.verifier.verdict import Verdict

_LETTER = re.compile(r"[A-Za-z]")


def compare(given: str, expected: str) -> Verdict:
    r"""Whether two answers are the same number, expression, set, interval or matrix.

    Args:
        given: the response's answer, without ``\boxed``.
        expected: the reference answer, without ``\boxed``.
    """
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    try:
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
    """math-verify's reading; a reference answer is read once for all the responses to its problem."""
    import math_verify

    found: list[Any] = math_verify.parse(rf"\boxed{{{text}}}", parsing_timeout=None, raise_on_error=True)
    return found


def _contradicts_itself(given: str, expected: str) -> bool:
    """Whether one side of the given equation is another number: ``5=7`` is no way of saying 7.

    math-verify reads the last side of an equation as the answer, so a response could name several.
    """
    if "=" not in given or "=" in expected:
        return False
    sides = [side for side in given.split("=") if side.strip() and not _LETTER.search(side)]
    return any(not _same(side, expected) for side in sides)
