r"""One spelling for signs that LaTeX writes in several ways: relations, primes, the blank ``~``."""

from __future__ import annotations

import re

from nemo_uecr.verifier.latex import TEXT

_RELATIONS = (
    (re.compile(r"\\(?:leqslant|leqq|leq|le)(?![A-Za-z])|(?<![<=>])<=(?!>)|[\u2264\u2a7d]"), r"\\le "),
    (re.compile(r"\\(?:geqslant|geqq|geq|ge)(?![A-Za-z])|(?<![<=>])>=|[\u2265\u2a7e]"), r"\\ge "),
    (re.compile(r"\\neq?(?![A-Za-z])|\\not\s*=|\u2260"), r"\\ne "),  # `!=` may be a factorial
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
)
_TIE = re.compile(r"(?<!\\)((?:\\\\)*)~")
_TEXT_BLANK = re.compile(r"(\\(?:text|mbox|mathrm|textrm)\s*\{)(?:\\[,;: ]|\s)+")
_RAISED_PRIMES = re.compile(r"\^\s*\{\s*((?:(?:\\prime(?![A-Za-z])|'|\u2032)\s*)+)\}|\^\s*\\prime(?![A-Za-z])")
_PRIME = re.compile(r"\\prime(?![A-Za-z])|[\u2032\u2019]")
_DOUBLE_PRIME = re.compile(r"\u2033|(?<=\d)\"")
#: An apostrophe of a word is no prime.
_POSSESSIVE = re.compile(r"(?<=[A-Za-z]{2})'(?=s(?![A-Za-z]))")
_LAYOUT = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle)(?![A-Za-z])|\\[,!;: ]|\s")


def one_spelling(text: str) -> str:
    r"""The text with ``\geq``, ``≥`` and ``>=`` as ``\ge``, ``f^{\prime}`` as ``f'`` and ``~`` as a blank."""
    for pattern, sign in _RELATIONS:
        text = pattern.sub(sign, text)
    text = _TEXT_BLANK.sub(r"\1 ", _TIE.sub(r"\1 ", text))
    text = _RAISED_PRIMES.sub(lambda match: "'" * _count(match[1] or "'"), text)
    return _DOUBLE_PRIME.sub("''", _PRIME.sub("'", text))


def other_primes(answer: str, reference: str) -> bool:
    """Whether one has a prime and is not written like the other; math-verify drops primes: ``f'(x)`` is no ``f(x)``."""
    ours, theirs = (_POSSESSIVE.sub("", text) for text in (answer, reference))
    return "'" in ours + theirs and _letters(ours) != _letters(theirs)


def _count(primes: str) -> int:
    return len(_PRIME.findall(primes)) + primes.count("'")


def _letters(text: str) -> str:
    """What is written, without commands for text and layout."""
    return _LAYOUT.sub("", TEXT.sub(lambda match: match[1], text))
