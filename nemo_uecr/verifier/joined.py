r"""Numbers that stand side by side without an operator, which math-verify adds: it reads ``203 1`` as 204.

LaTeX has one such form, the mixed number ``1\frac{1}{2}``. A command without braces takes one digit, so that
``\sqrt51`` is no way to write the root of 51, and ``\frac121`` is no fraction.
"""

from __future__ import annotations

import re

from nemo_uecr.verifier.latex import TEXT

_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_FRACTION = re.compile(rf"\\(?:[dtc]?frac|[dt]?binom)\s*({_GROUP}|\d)\s*({_GROUP}|\d)")
_ROOT = re.compile(rf"\\sqrt\s*(?:\[[^\]]*\]\s*)?({_GROUP}|\d)")
#: A function with its base or its power, which a number follows rightly, as in ``\log_{2} 8``.
_INDEXED = re.compile(rf"\\(?:log|ln|lg|sin|cos|tan|cot|sec|csc|sum|prod|int|lim)(?:\s*[_^]\s*(?:{_GROUP}|\\?\w))+")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[^{}]*\}(?:\{[lcr| ]*\})?")
_IGNORED = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle)(?![A-Za-z])|\\[,!]")
#: ``\x02`` ends a fraction, a root or a word.
_SIDE_BY_SIDE = re.compile(r"\d\.?[\s{}]+\.?\d|(?:[)\]}\x02]|\\circ(?![A-Za-z]))[\s{}]*\.?\d")
_MIXED = re.compile(r"(?<![\d.])(\d+)(?:\s|\\[,!])*\\[dtc]?frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))")
_SLASHED = re.compile(r"(?<![\w.}^)\\])(\d+)(?:\s|\\,)+(\d+)\s*/\s*(\d+)(?![\w.])")
_THIN_THOUSANDS = re.compile(r"(?<![\d.])([1-9]\d{0,2})((?:\\,\d{3})+)(?!\d)")


def numbers_joined(text: str) -> str:
    r"""The text with ``58\,500`` as one number and ``2 1/2`` as the mixed number ``2\frac{1}{2}``."""
    whole = _THIN_THOUSANDS.sub(lambda match: match[0].replace(r"\,", ""), text)
    return _SLASHED.sub(r"\1\\frac{\2}{\3}", whole)


def side_by_side(text: str) -> bool:
    """Whether a number follows another value without an operator, or a whole number an improper fraction."""
    for match in _MIXED.finditer(text):
        top, bottom = match[2] or match[3], match[4] or match[5]
        if int(top) >= int(bottom):
            return True
    plain = _ENVIRONMENT.sub("&", text.replace("{,}", ",").replace(r",\!", ","))
    plain = TEXT.sub(_word, _IGNORED.sub(" ", plain))
    plain = _INDEXED.sub(r"\\log ", plain)
    return _SIDE_BY_SIDE.search(_braced(plain)) is not None


def _word(match: re.Match[str]) -> str:
    """A word as a value of its own; a number in a text command as that number."""
    return match[1] if re.search(r"\d", match[1]) or not match[1].strip() else "\x02"


def _braced(text: str) -> str:
    """Roots and fractions, inner ones too, with their arguments in marks of their own."""
    for _ in range(4):
        text = _ROOT.sub(lambda match: f"\x01{_inner(match[1])}\x02", text)
        text = _FRACTION.sub(lambda match: f"\x01{_inner(match[1])}\x01{_inner(match[2])}\x02", text)
    return text


def _inner(argument: str) -> str:
    return argument[1:-1] if argument.startswith("{") else argument
