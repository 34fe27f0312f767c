r"""Whether a text is one answer, before math-verify reads it, which takes the last of several.

An answer may hold the marks of a number, an expression, a set or an interval, and what its reference answer holds.
Any other relation, arrow, separator or decoration makes it no single answer: ``6 \approx 5`` names two numbers, and
``\cancel{6} 5`` as well.
"""

from __future__ import annotations

import re

from nemo_uecr.verifier.joined import numbers_joined
from nemo_uecr.verifier.latex import TEXT, TOKEN
from nemo_uecr.verifier.products import products_spelled_out
from nemo_uecr.verifier.spelling import one_spelling
from nemo_uecr.verifier.structure import other_structure
from nemo_uecr.verifier.symbols import bare_symbols, strange_marks
from nemo_uecr.verifier.times import other_time, times_as_numbers, times_bare
from nemo_uecr.verifier.units import other_base, other_unit

_ARITHMETIC = """frac dfrac tfrac cfrac sqrt times cdot div binom dbinom tbinom left right big Big bigl bigr Bigl Bigr
    pm infty displaystyle textstyle sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp min max
    gcd lcm lfloor rfloor lceil rceil lvert rvert vert sum prod int lim degree prime emptyset mathbb angle triangle
    begin end text mathrm mbox textbf mathbf textrm textit mathit operatorname mathcal"""
_GREEK = """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma
    tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"""
_COMMANDS = {rf"\{name}" for name in f"{_ARITHMETIC} {_GREEK}".split()} | {r"\{", r"\}", r"\,", r"\!", r"\%", r"\$"}
#: Characters that stand in numbers and expressions; beyond ASCII only Greek and the usual signs.
_CHARACTERS = frozenset("+-*/^_()[]{}.,=!|' $\u00b0\u2212\u00d7\u00b7\u221a\u221e\u00b2\u00b3")
_MATRIX = re.compile(r"\\begin\{[pbvV]?matrix\}")
#: Marks that a set or an interval may be written with, and a number may not.
_OF_SETS = {r"\cup", r"\cap", r"\setminus", "\u222a", "\u2229"}
_SPACE = re.compile(
    r"\\(?:space|enspace|thinspace|quad|qquad|hfill|newline)(?![A-Za-z])"
    r"|\\[hv]space\*?\{[^{}]*\}|\\[ ;:]|~|\s"
)
_OR = re.compile(r"\\(?:lor|vee|land|wedge)(?![A-Za-z])|;|(?<![A-Za-z\\{])(?:or|and|und|oder|et)(?![A-Za-z}])")
_OR_WORD = re.compile(r"\s*(?:,?\s*(?:or|and)|,)\s*", re.IGNORECASE)
#: A list with an empty place.
_GAP = re.compile(r",(?!\\!)\s*,")
_EMPTY = re.compile(r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}|∅")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\overline\{(\d+)\}")
_BOUNDS = re.compile(
    r"(?P<low>[^<>=]+?)(?P<left><|\\leq?(?![A-Za-z])|≤)\s*[A-Za-z]\s*(?P<right><|\\leq?(?![A-Za-z])|≤)"
    r"(?P<high>[^<>=]+)"
)
_MEMBER = re.compile(r"^\s*[A-Za-z]\s*(?:\\in(?![A-Za-z])|∈)\s*(?=[\[(\\])")
_NAMED = re.compile(r"\s*([A-Za-z]|\\[a-z]+)\s*=(.+)", re.DOTALL)
_DEGREES = re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})")
#: Cycles of a permutation: as a product of numbers they could be in any order.
_CYCLES = re.compile(r"(?:\(\s*\d[\d\s]*\)\s*){2,}")
_WORD_BETWEEN = re.compile(r"[\d})]\s+[A-Za-z]{2,}\s+[\d\\({]")
_NUMBER_IN_TEXT = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf)\s*\{[^{}]*[\d\\]")
_TEXT_BETWEEN = re.compile(r"[\d})\]]\s*\x00(?!\s*\^)[^,]*?[\d({\[]")


def readable(given: str, expected: str) -> tuple[str, str] | None:
    r"""Both answers as math-verify compares them rightly; None when the given one is no single answer.

    "or", "and" and semicolons become commas: a list of two is no number, and the same list in other words is the same.

    Args:
        given: the response's answer, without ``\boxed``.
        expected: the reference answer.
    """
    reference = _bare(expected)
    if reference is None:
        return given, expected  # nothing to measure the answer by
    answer = _bare(given)
    if answer is None:
        return None
    answer, reference = (times_bare(one_spelling(text)) for text in (answer, reference))
    if strange_marks(answer, reference) or other_time(answer, reference):
        return None
    if _CYCLES.fullmatch(reference) and "".join(answer.split()) != "".join(reference.split()):
        return None
    answer, reference = times_as_numbers(answer), times_as_numbers(reference)
    if _GAP.search(answer) and not _GAP.search(reference):
        return None
    answer, reference = (_plain(bare_symbols(text, reference)) for text in (answer, reference))
    answer = _MEMBER.sub("", _as_interval(answer, reference))
    if "=" not in reference:
        answer = _without_names(answer)
    if _foreign(answer, reference) or other_base(answer, reference) or other_unit(answer, reference):
        return None
    return None if other_structure(answer, _MEMBER.sub("", reference)) else (answer, reference)


def _bare(text: str) -> str | None:
    r"""The text without dollar signs or ``\(...\)`` around the whole of it; None when there are several formulas."""
    stripped = text.strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        inner = stripped[len(opening) : -len(closing)]
        if stripped.startswith(opening) and stripped.endswith(closing) and len(stripped) > len(opening + closing):
            stripped = inner.strip()
            break
    unescaped = re.sub(r"\\\$", "", stripped)
    several = unescaped.count("$") > 1 or ("$" in unescaped.strip()[1:-1]) or re.search(r"\\[()\[\]]", unescaped)
    return None if several else stripped


def _plain(text: str) -> str:
    text = _EMPTY.sub(r"\\emptyset ", text)
    text = TEXT.sub(lambda match: ", " if _OR_WORD.fullmatch(match[1]) else match[0], text)
    listed = re.sub(r",(?:\s*,)+", ",", _OR.sub(" , ", _SPACE.sub(" ", text)))
    return products_spelled_out(numbers_joined(_REPEATING.sub(_fraction, listed)))


def _fraction(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` is (16 - 1) / 90."""
    whole, fixed, period = match.groups()
    top = int(whole + fixed + period) - int((whole + fixed) or "0")
    return rf"\frac{{{top}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


def _as_interval(text: str, reference: str) -> str:
    r"""``0 \le x < 1`` as ``[0, 1)`` where the reference answer is an interval."""
    match = _BOUNDS.fullmatch(text.strip())
    if match is None or not re.match(r"\s*(?:[A-Za-z]\s*\\in\s*)?(?:\\left\s*)?[\[(]", reference):
        return text
    return (
        f"{'(' if match['left'] == '<' else '['}{match['low']},{match['high']}{')' if match['right'] == '<' else ']'}"
    )


def _without_names(text: str) -> str:
    """``x=4, x=5`` as ``4, 5``: one unknown, named before each of its values."""
    parts = [_NAMED.fullmatch(part) for part in text.split(",")]
    names = {part[1] for part in parts if part is not None}
    if len(parts) < 2 or len(names) != 1 or None in parts:
        return text
    return ",".join(part[2] for part in parts if part is not None)


def _foreign(answer: str, reference: str) -> bool:
    """Whether the answer holds a mark that neither numbers and expressions nor the reference answer have."""
    allowed = set(TOKEN.findall(reference)) | _COMMANDS
    if _MATRIX.search(answer):
        allowed |= {r"\\", "&"}
    elif r"\begin" in answer and r"\begin" not in reference:
        return True
    if re.search(r"[\[({]|\\infty|\\emptyset", reference):
        allowed |= _OF_SETS
    rest = re.sub(r"(?<!\\)%\s*$", "", _DEGREES.sub("", answer))
    words = TEXT.sub("\x00", rest)
    if not _NUMBER_IN_TEXT.search(reference) and _NUMBER_IN_TEXT.search(rest) and re.search(r"\d", words):
        return True
    if not TEXT.search(reference) and (_WORD_BETWEEN.search(words) or _TEXT_BETWEEN.search(words)):
        return True
    return any(not (token in allowed or _usual(token)) for token in TOKEN.findall(words.replace("\x00", "")))


def _usual(token: str) -> bool:
    return token in _CHARACTERS or (token.isascii() and token.isalnum()) or "\u0391" <= token <= "\u03c9"  # Greek
