"""Are two answers the same number or expression? Plain texts and integers at once, the rest by math-verify."""

from __future__ import annotations

import functools
import re

from nemo_uecr.verifier.extract import last_boxed
from nemo_uecr.verifier.numbers import plain_number
from nemo_uecr.verifier.pool import shared_compare
from nemo_uecr.verifier.verdict import Checked, Verdict
from nemo_uecr.verifier.words import same_word

_BLANKS = re.compile(r"((?<=[0-9A-Za-z.])\s+(?=[0-9A-Za-z.]))|\s+")

#: A comma with a blank beside it separates; it sets no thousands apart.
_LISTED = re.compile(r"\s,|(?<!\\),\s")


def check_response(response: str, answer: str) -> Checked:
    r"""Judge a response by the content of its last ``\boxed{...}``.

    Args:
        response: the sampled text, without the prompt.
        answer: the reference answer, bare or boxed.
    """
    extracted = last_boxed(response)
    if extracted is None or not extracted:
        return Checked(Verdict.NO_ANSWER, extracted)
    boxed_answer = last_boxed(answer)
    return Checked(judge(extracted, answer if boxed_answer is None else boxed_answer), extracted)


@functools.lru_cache(maxsize=65_536)
def judge(given: str, expected: str) -> Verdict:
    """Whether two answer texts are equivalent; what needs mathematics is compared in a process of its own."""
    quick = judge_plain(given, expected)
    return shared_compare(without_point(given), without_point(expected)) if quick is None else quick


def judge_plain(given: str, expected: str) -> Verdict | None:
    """The verdict on equal texts, plain numbers and one word in either case; None where it takes mathematics."""
    if _squeezed(given) != _squeezed(expected):
        given, expected = without_point(given), without_point(expected)
    if _squeezed(given) == _squeezed(expected):
        split = _LISTED.search(given) is not None and _LISTED.search(expected) is None
        return Verdict.WRONG if split and plain_number(_squeezed(expected)) is not None else Verdict.CORRECT
    if _LISTED.search(given) or _LISTED.search(expected):
        return None
    numbers = plain_number(_squeezed(given)), plain_number(_squeezed(expected))
    if numbers[0] is not None and numbers[1] is not None:
        return Verdict.CORRECT if numbers[0] == numbers[1] else Verdict.WRONG
    return Verdict.CORRECT if same_word(given, expected) else None


def without_point(answer: str) -> str:
    """The answer without the full stop of its sentence, which is no part of the mathematics; ``...`` stays."""
    bare = answer.rstrip()
    return bare if bare.endswith("..") else bare.removesuffix(".")


def _squeezed(text: str) -> str:
    """The text without blanks, but for those that keep two digits, points or letters apart."""
    return _BLANKS.sub(lambda blanks: " " if blanks[1] else "", text.strip())
