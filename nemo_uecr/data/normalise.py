"""One reading of a problem text for every comparison: case, spacing, typography and LaTeX spelling do not count."""

from __future__ import annotations

import re
import unicodedata

#: Part of every manifest: another reading finds other duplicates.
NORMALISATION = "1"

#: Typographic signs by code point: minus and dashes, multiplication signs, relations.
_SIGNS = {
    **dict.fromkeys((0x2212, 0x2010, 0x2011, 0x2012, 0x2013, 0x2014), "-"),
    **dict.fromkeys((0x00D7, 0x00B7, 0x22C5), "*"),
    0x2264: " <= ",
    0x2265: " >= ",
    0x2260: " != ",
}
_SPELLINGS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "cdot": "*", "times": "*", "le": "<=", "leq": "<=",
    "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=", "ldots": "", "dots": "",
    "cdots": "", "left": "", "right": "", "big": "", "bigl": "", "bigr": "", "displaystyle": "", "text": "",
    "textbf": "", "textit": "", "emph": "", "mathrm": "", "mathbf": "", "mathit": "", "operatorname": "", "mbox": "",
    "quad": "", "qquad": "", "limits": "", "nolimits": "", "circ": "deg", "degree": "deg", "varnothing": "emptyset",
}  # fmt: skip
_COMMAND = re.compile(r"\\([a-z]+)\*?")
_ESCAPED = re.compile(r"\\[^a-z]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_NOISE = re.compile(r"[^\w+\-*/=<>!^]|_")


def normalised(text: str) -> str:
    """The text in lower case with LaTeX spellings unified and layout commands gone."""
    plain = unicodedata.normalize("NFKC", text).casefold().translate(_SIGNS)
    if "\\" in plain:
        plain = _COMMAND.sub(_spelling, plain)
        plain = _ESCAPED.sub(" ", plain)
    return _THOUSANDS.sub("", plain.replace("{,}", ","))


def words(plain: str) -> list[str]:
    """Words and numbers of a normalised text, in order; signs and layout are left out."""
    return _WORD.findall(plain)


def exact_key(plain: str) -> str:
    """Letters, digits and operators of a normalised text, without any space: equal keys are the same problem."""
    return _NOISE.sub("", plain)


def _spelling(match: re.Match[str]) -> str:
    name = match[1]
    return f" {_SPELLINGS.get(name, name)} "
