r"""How an answer is built: its brackets, how many parts it lists, the words in it.

math-verify reads `[6,31,-1]`, `\{6,31,-1\}` and `6,31,-1` alike, drops repeated members of a list and words that it
takes for a unit. Here such an answer is refused: a wrong answer that is rewarded does more harm than a right one lost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from nemo_uecr.verifier.joined import side_by_side
from nemo_uecr.verifier.latex import TOKEN
from nemo_uecr.verifier.spelling import other_primes
from nemo_uecr.verifier.units import UNIT_WORDS

_SIZED = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*")
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:(?:\{,\}|,\\!|,)\d{3})+(?![\d,])")
_CLOSED_INFINITY = re.compile(r"\[\s*[-+]?\s*(?:\\infty|\u221e)|(?:\\infty|\u221e)\s*\]")
#: Two digits after a sign that raises or lowers one.
_UNBRACED = re.compile(r"\^\s*\d\d")
#: Letters with digits behind them, as in a name; read as LaTeX they are a product, so that `A1` would be `A`.
_NUMBERED = re.compile(r"(?<![A-Za-z\\\d.])[A-Za-z]+\d+")
_TEXT = re.compile(r"\\(text|mbox|mathrm|textrm|textbf|mathbf|textit|mathit|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z\u00b5]+")
_BARE_WORD = re.compile(r"(?<=[\d})])\s*([A-Za-z]{2,})(?![A-Za-z])")
_LETTER = re.compile(r"(?<!\\)(?<![A-Za-z\\])[A-Za-z]+(?![A-Za-z])")
_CAPITALS = re.compile(r"[A-Z]{2,}")
_ONE_LETTER = ("mathrm", "mathbf", "mathit", "operatorname")
_FUNCTIONS = frozenset(["gcd", "lcm", "log", "ln", "sin", "cos", "tan", "max", "min", "exp", "mod", "deg"])


def other_structure(answer: str, reference: str) -> bool:
    """Whether the answer is built in another way than its reference answer.

    Args:
        answer: the given answer as LaTeX, "or" and "and" already commas.
        reference: the reference answer, treated alike.
    """
    return (
        _brackets(answer) != _brackets(reference)
        or _strange_words(answer, reference)
        or _rearranged_name(answer, reference)
        or _numbered_names(answer) != _numbered_names(reference)
        or _repeated(answer) != _repeated(reference)
        or other_primes(answer, reference)
        or (side_by_side(answer) and not side_by_side(reference))
        or any(
            pattern.search(answer) is not None and pattern.search(reference) is None
            for pattern in (_CLOSED_INFINITY, _UNBRACED)
        )
    )


def top_level(text: str, separator: str) -> list[str]:
    """The text cut at a separator that stands within no bracket."""
    parts, depth = [""], 0
    for token in TOKEN.findall(_SIZED.sub("", text)):
        depth += (token in _OPENING) - (token in _CLOSING)
        if token == separator and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def list_parts(text: str) -> list[str]:
    r"""The members of a list or of a set in braces; a comma that sets thousands apart separates nothing."""
    text = re.sub(r"\\mathbb\s*\{\s*R\s*\}", r"(-\\infty,\\infty)", text)
    plain = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text.strip())
    sized = _SIZED.sub("", plain).strip()
    if sized.startswith(r"\{") and sized.endswith(r"\}"):
        sized = sized[2:-2]
    return [part.strip() for part in top_level(sized, ",")]


def _brackets(text: str) -> Counter[str]:
    r"""The kind of every member of a list: its outer brackets where they hold several parts, else nothing.

    `\pm` stands for two members.
    """
    kinds: Counter[str] = Counter()
    for part in list_parts(text):
        kinds[_kind(part)] += 2 if r"\pm" in part else 1
    return kinds


def _repeated(text: str) -> Counter[str]:
    """The members that a list or a set holds more than once; math-verify drops them."""
    members = Counter("".join(part.split()) for part in list_parts(text))
    return Counter({part: number for part, number in members.items() if number > 1})


def _kind(part: str) -> str:
    stripped = part.rpartition("=")[2].strip()
    if len(stripped) < 3 or stripped[0] not in "([" or stripped[-1] not in ")]":
        return ""
    return stripped[0] + stripped[-1] if len(top_level(stripped[1:-1], ",")) > 1 else ""


def _strange_words(answer: str, reference: str) -> bool:
    """Whether words stand in the answer that are no unit and not in the reference answer."""
    known = {word.lower() for word in _WORD.findall(reference)} | UNIT_WORDS | _FUNCTIONS
    numeric = _LETTER.search(_TEXT.sub("", reference)) is None
    bare = _BARE_WORD.findall(_TEXT.sub("", answer)) if numeric else []
    return any(word.lower() not in known for word in (*_text_words(answer), *bare))


def _text_words(answer: str) -> Iterator[str]:
    for match in _TEXT.finditer(answer):
        words = _WORD.findall(match[2])
        if not (match[1] in _ONE_LETTER and len(match[2].strip()) == 1):
            yield from words


def _numbered_names(text: str) -> list[str]:
    return sorted(_NUMBERED.findall(_TEXT.sub(lambda match: match[2], text)))


def _rearranged_name(answer: str, reference: str) -> bool:
    """Whether a name in capital letters is not that of the reference answer: ``CBA`` is no ``ABC``."""
    ours, theirs = (_TEXT.sub(lambda match: match[2], text).strip() for text in (answer, reference))
    if _CAPITALS.fullmatch(theirs) is None and _CAPITALS.fullmatch(ours) is None:
        return False
    return ours != theirs
