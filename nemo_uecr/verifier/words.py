"""A single word, which may be in either case: as mathematics it would be a product of its letters."""

from __future__ import annotations

import re

_TEXT = re.compile(r"\\(?:text|mbox|textrm|textbf|textit)\s*\{\s*([A-Za-z]+)\s*\}")
_WORD = re.compile(r"[A-Za-z]{2,}")
_IN_SENTENCE = re.compile(r"[A-Za-z][a-z]{2,}")
#: Words that are words in capitals too; other capitals are names, as of a triangle's corners.
_USUAL_WORDS = (
    "yes no true false none never always sometimes undefined infinity infinite impossible even odd prime composite "
    "positive negative neither both zero one two three four five six seven eight nine ten left right north south east "
    "west increasing decreasing constant convergent divergent converges diverges rational irrational acute obtuse "
    "isosceles equilateral scalene circle ellipse parabola hyperbola line point plane sphere cone cylinder square "
    "rectangle rhombus trapezoid parallelogram triangle monday tuesday wednesday thursday friday saturday sunday "
    "january february march april june july august september october november december red blue green yellow white "
    "black orange purple"
)
_USUAL = frozenset(_USUAL_WORDS.split())


def same_word(given: str, expected: str) -> bool:
    """Whether both are one word, in either case; letters in capitals only where they cannot be a name or a product.

    Args:
        given: the response's answer.
        expected: the reference answer. In a command for text, and not in capitals, it is a word and no product.
    """
    given, expected = (text.strip().strip("$").strip() for text in (given, expected))
    ours, theirs = (_TEXT.sub(r"\1", text) for text in (given, expected))
    if _WORD.fullmatch(ours) is None or ours.lower() != theirs.lower():
        return False
    if _IN_SENTENCE.fullmatch(theirs) and (_IN_SENTENCE.fullmatch(ours) or _TEXT.fullmatch(expected)):
        return True
    return ours.lower() in _USUAL
