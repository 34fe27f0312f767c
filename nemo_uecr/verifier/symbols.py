r"""Letters and marks in commands for text, which math-verify drops: ``1+274\mathrm{i}`` would be 275."""

from __future__ import annotations

import re

from nemo_uecr.verifier.latex import TEXT

_ONE_LETTER = re.compile(r"\\(?:mathrm|mathbf|mathit|mathcal|operatorname)\s*\{\s*([A-Za-z])\s*\}")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]+")
_GREEK = re.compile(
    r"\\(?:[Gg]amma|[Dd]elta|[Tt]heta|[Ll]ambda|[Xx]i|[Pp]i|[Ss]igma|[Uu]psilon|[Pp]hi|[Pp]si|[Oo]mega)\b"
)
_CHOICE = re.compile(r"\s*\(?\s*[A-E]\s*\)?\s*")
_NAME = re.compile(r"\s*[A-Za-z][a-z]{2,}\s*")
#: Units of one letter, in the case that the unit has.
_UNITS = frozenset("mgshdlLNJWV")
_DEGREE = re.compile(r"(?:\\circ\s*\}?|\u00b0|\\degree)[\s,\\!]*$")
_BEFORE_UNIT = re.compile(r"[\d})/][\s,\\!]*$")
_COMMAND_END = re.compile(r"\\[A-Za-z]+$")
_AFTER_UNIT = re.compile(r"\s*(?:\^\s*(?:\d|\{\s*[+-]?\s*\d\s*\})\s*)?(?:$|[,/)\]}]|\\(?:text|mbox|mathrm|textrm)\b)")
#: What words, their units and the signs of money and percent are written with.
_ORDINARY = re.compile(r"(?:(?![\u00b2\u00b3])[^\W\d_]|[\d\s.,;:/()'\"&%$\u00b0\\{}-]|(?<=[^\W\d_])[\u00b2\u00b3])*")
_WORD = re.compile(r"(?![\u00b2\u00b3])[^\W\d_]")
_LONE_SIGN = re.compile(r"\s*(?:\\?[$%]|\u00b0|[.,]|-?[\d.,]+)?\s*")


def bare_symbols(text: str, reference: str) -> str:
    r"""The text with ``\mathrm{i}`` as ``i``; only a unit behind a number, which is none in the reference, stays.

    Args:
        text: an answer.
        reference: the reference answer; a letter in it is a symbol.
    """
    known = set("".join(_LETTER.findall(TEXT.sub(" ", reference))))

    def bare(match: re.Match[str]) -> str:
        before, after, letter = text[: match.start()], text[match.end() :], match[1]
        unit = letter in _UNITS and letter not in known and _BEFORE_UNIT.search(before) and _AFTER_UNIT.match(after)
        temperature = letter in "CF" and _DEGREE.search(before)
        if unit or temperature:
            return match[0]
        return f" {letter}" if _COMMAND_END.search(before) else letter

    return _ONE_LETTER.sub(bare, text)


def other_case(given: str, expected: str) -> bool:
    """Whether a symbol differs by its case alone, which math-verify does not see: ``3r^2`` is no ``3R^2``.

    A choice (``c`` for ``C``) and a single word may be in either case.
    """
    if _CHOICE.fullmatch(expected) or (_NAME.fullmatch(given) and _NAME.fullmatch(expected)):
        return False
    ours, theirs = _symbols(given), _symbols(expected)
    return any(symbol not in theirs and _swapped(symbol) in theirs for symbol in ours) or (
        any(_swapped(symbol) in theirs for symbol in theirs) and "".join(given.split()) != "".join(expected.split())
    )


def _symbols(text: str) -> set[str]:
    plain = TEXT.sub(" ", text)
    return set("".join(_LETTER.findall(plain))) | set(_GREEK.findall(plain))


def _swapped(symbol: str) -> str:
    return symbol.swapcase() if len(symbol) == 1 else symbol[0] + symbol[1].swapcase() + symbol[2:]


def strange_marks(answer: str, reference: str) -> bool:
    r"""Whether a command for text holds marks that would be dropped, as ``\text{!}``, and the reference not."""
    known = {text.strip() for text in TEXT.findall(reference)}
    for content in TEXT.findall(answer):
        lone = _WORD.search(content) is None
        if content.strip() not in known and not (_LONE_SIGN if lone else _ORDINARY).fullmatch(content):
            return True
    return False
