"""Times of day, scores and ratios: math-verify divides at a colon, and ``9:45`` would be ``3:15``."""

from __future__ import annotations

import re

from nemo_uecr.verifier.latex import TEXT

_JOINED = re.compile(r"(?<![\w.:])\d+(?:\s*:\s*\d+)+(?![\w:])")
#: Not the blank ``\:``.
_COLON = re.compile(r"(?<!\\):")
#: ``p.m.`` behind a number, which math-verify drops.
_HALF_OF_DAY = re.compile(
    r"(?<=[\d})])(?:[\s~]|\\[, ])*(?P<text>\\(?:text|mbox|mathrm|textrm)\s*\{\s*)?"
    r"(?P<half>[ap])(?:\.\s*m\.?|m)(?![A-Za-z])(?(text)\s*\})",
    re.IGNORECASE,
)


def other_time(answer: str, reference: str) -> bool:
    """Whether the numbers around colons, or the halves of the day, are not those of the reference answer.

    As ratios ``2:4`` and ``1:2`` are equal; as scores and as times they are not. An answer may lack the half of the day
    that its reference has in a command for text, as it may lack a unit.
    """
    halves = [[match["half"].lower() for match in _HALF_OF_DAY.finditer(text)] for text in (answer, reference)]
    if halves[0] != halves[1] and (halves[0] or not all(match["text"] for match in _HALF_OF_DAY.finditer(reference))):
        return True
    return len(_COLON.findall(answer)) != len(_COLON.findall(reference)) or _numbers(answer) != _numbers(reference)


def times_as_numbers(text: str) -> str:
    """The text with ``8:00 p.m.`` as one number, for answers that `other_time` lets pass."""
    return _JOINED.sub(lambda match: re.sub(r"\s*:\s*", "0", match[0].lstrip("0")), _HALF_OF_DAY.sub("", text))


def times_bare(text: str) -> str:
    r"""The text with ``\text{3:15 p.m.}`` as ``3:15 p.m.``."""
    return TEXT.sub(lambda match: match[1] if ":" in match[1] else match[0], text) if ":" in text else text


def _numbers(text: str) -> list[str]:
    """Numbers that colons join; a zero before an hour is not written."""
    return sorted("".join(match[0].split()).lstrip("0") for match in _JOINED.finditer(text))
