"""One reading of a problem text for every comparison: case, spacing, typography and LaTeX spelling do not count."""

from __future__ import annotations

import re
import unicodedata

#: Part of every manifest: another reading finds other duplicates.
NORMALISATION = "2"

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
#: Cyrillic and Greek lower-case letters that look like Latin ones, by code point.
_LOOK_ALIKES = {
    0x0430: "a", 0x0435: "e", 0x043E: "o", 0x0440: "p", 0x0441: "c", 0x0445: "x", 0x0443: "y", 0x0456: "i", 0x0458: "j",
    0x0455: "s", 0x04BB: "h", 0x0501: "d", 0x051B: "q", 0x051D: "w", 0x043A: "k", 0x043C: "m", 0x0442: "t", 0x043D: "h",
    0x0432: "b", 0x03BF: "o", 0x03BD: "v", 0x03BA: "k", 0x03C1: "p", 0x03C5: "u", 0x03B9: "i", 0x03F2: "c",
}  # fmt: skip
_COMMAND = re.compile(r"\\([a-z]+)\*?")
_ESCAPED = re.compile(r"\\[^a-z]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_NOISE = re.compile(r"[^\w+\-*/=<>!^]|_")


def normalised(text: str) -> str:
    """The text in lower case with LaTeX spellings unified and layout commands gone."""
    plain = _letters(text)
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


def tight_key(text: str) -> str:
    r"""Letters and digits of the text as it stands, commands included: blanks inside words or commands do not count."""
    return "".join(sign for sign in _letters(text) if sign.isalnum())


def _letters(text: str) -> str:
    """Lower case, without accents and invisible characters, look-alike letters as the Latin ones."""
    if text.isascii():
        return text.casefold()
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    kept = "".join(sign for sign in apart if unicodedata.category(sign) not in ("Mn", "Cf"))
    return kept.translate(_SIGNS).translate(_LOOK_ALIKES)


def _spelling(match: re.Match[str]) -> str:
    name = match[1]
    return f" {_SPELLINGS.get(name, name)} "
