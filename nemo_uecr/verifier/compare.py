r"""Whether two answers are the same: plain numbers at once, the rest by math-verify behind a layer of vetoes.

math-verify is lenient: it takes the last of several answers, adds numbers that stand side by side, and drops words,
units and brackets. A policy finds such leniency and exploits it. So an answer is read as a structure first: rows of a
matrix, coordinates of a point, members of a list. Structures are compared place by place, and only single values reach
math-verify, unless one of them is written otherwise than its reference or has another unit. A wrong answer that is
rewarded does more harm than a right one that is not: in doubt, the answer is wrong. docs/verifier.md has the rules.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.spelling import GROUP, MIXED, TEXT, TOKEN, spelled

# Plain texts and numbers ----------------------------------------------------------------------------------------------

_BLANKS = re.compile(r"((?<=[0-9A-Za-z.])\s+(?=[0-9A-Za-z.]))|\s+")
#: A comma with a blank beside it separates members of a list; it does not set thousands apart.
_LISTED = re.compile(r"\s,|(?<!\\),\s")
#: Digits, thousands set off by commas or not at all. `1,2` is a list, and no thousands follow a leading zero.
_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d*)?"
#: LaTeX raises a single digit unless there are braces, so `2 \times 10^34` is left to those who read LaTeX.
_POWER = r"[eE]([+-]?\d{1,12})|(?:\\times|\\cdot|\*) ?10\^(?:\{([+-]?\d{1,12})\}|(\d)(?!\d))"
_NUMBER = re.compile(rf"([+-]?)({_DIGITS})(?:{_POWER})?")
#: What sets thousands apart in LaTeX: a braced comma, a comma with negative space, a thin space.
_SEPARATOR = re.compile(r"\{,\}(?:\\!)?|,\\!|(?<=\d)\\,(?=\d{3}(?!\d))")
_ONE_WORD = re.compile(r"[A-Za-z][a-z]{2,}")


def judge_plain(given: str, expected: str) -> Verdict | None:
    """The verdict on equal texts, plain numbers and single words; None where it takes mathematics."""
    given, expected = _without_point(given), _without_point(expected)
    if _squeezed(given) == _squeezed(expected):
        listed = bool(_LISTED.search(given)) and not _LISTED.search(expected)
        return Verdict.WRONG if listed and plain_number(_squeezed(expected)) else Verdict.CORRECT
    if _LISTED.search(given) or _LISTED.search(expected):
        return None
    numbers = plain_number(_squeezed(given)), plain_number(_squeezed(expected))
    if None not in numbers:
        return Verdict.CORRECT if numbers[0] == numbers[1] else Verdict.WRONG
    ours, theirs = (TEXT.sub(r"\1", text).strip("$ ") for text in (given, expected))
    words = _ONE_WORD.fullmatch(theirs) and (_ONE_WORD.fullmatch(ours) or theirs not in expected.split())
    return Verdict.CORRECT if words and ours.lower() == theirs.lower() else None


def plain_number(text: str) -> tuple[str, str, int] | None:
    """Sign, digits and power of ten of a number written in digits; None for anything else.

    value = sign · digits · 10^power,   digits without zeros at either end, so that equal values are equal tuples
    """
    plain = _SEPARATOR.sub(",", text).strip("$")
    match = _NUMBER.fullmatch(plain) if plain.isascii() else None
    if match is None:
        return None
    sign, digits, *powers = match.groups(default="")
    whole, _, fraction = digits.replace(",", "").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "", "", 0
    bare = digits.rstrip("0")
    return sign.strip("+"), bare, int("".join(powers) or 0) - len(fraction) + len(digits) - len(bare)


def _without_point(answer: str) -> str:
    """The answer without the full stop of its sentence; ``...`` stays."""
    bare = answer.rstrip()
    return bare if bare.endswith("..") else bare.removesuffix(".")


def _squeezed(text: str) -> str:
    """The text without blanks, but for those that keep two digits, points or letters apart."""
    return _BLANKS.sub(lambda blanks: " " if blanks[1] else "", text.strip())


# Structure: what is compared with what --------------------------------------------------------------------------------

_SIZED = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])\s*")
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
_SAID_OF = re.compile(r"\\in(?![A-Za-z])")
_CHOICE = re.compile(
    r"(?i:(?:the\s+)?(?:option|choice|answer)\s*(?:is)?\s*:?)?\s*(?:\(([A-J])\)|([A-J])(?:\s*[):.]|$))\s*(.*)"
)
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z\\])(?!A\s+[a-z])[A-J](?![A-Za-z])|(?<![A-Za-z])(?:or|not)(?![A-Za-z])")


def compare(given: str, expected: str) -> Verdict:
    """Whether two answers are the same number, expression, set, interval or matrix; without a time limit."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    given, expected = (_without_point(" ".join(text.split())) for text in (given, expected))
    try:
        same = _same_choice(given, expected)
        same = _equivalent(given, expected) if same is None else same
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RuntimeError, MemoryError):
        return Verdict.ERROR
    return Verdict.CORRECT if same else Verdict.WRONG


def _same_choice(given: str, expected: str) -> bool | None:
    r"""Whether the answer is the lettered option ``B``, ``(B)`` or ``\textbf{(B)}\ 12``; None where there is none."""
    theirs, ours = (_CHOICE.fullmatch(_without_commands(text)) for text in (expected, given))
    if theirs is None:
        return None
    if ours is None:
        return _equivalent(given, theirs[3]) if theirs[3] else None
    if (ours[1] or ours[2]) != (theirs[1] or theirs[2]):
        return False
    if ours[3] and theirs[3]:
        return _equivalent(ours[3], theirs[3])
    return _OTHER_CHOICE.search(ours[3]) is None


def _without_commands(text: str) -> str:
    return re.sub(r"[$~*]|\\[ ,;:!]|\\q?quad(?![A-Za-z])", " ", TEXT.sub(r"\1", text)).strip()


def _equivalent(given: str, expected: str) -> bool:
    given, expected = spelled(given), spelled(expected)
    if _squeezed(given) == _squeezed(expected):
        return True
    if _too_large(given, expected):
        return False
    members = [_said_of(text) for text in (given, expected)]
    if None not in [name for name, _ in members] and members[0][0] != members[1][0]:
        return False  # y in an interval is no x in it
    given, expected = (text for _, text in members)
    ours, theirs = (_named(text) if _is_equation(text) else None for text in (given, expected))
    if "=" not in expected and "," in given and ours:
        given = ours[1]
    if _is_equation(expected) and not _is_equation(given):
        return theirs is not None and _agree(given, theirs[1])
    if ours and theirs and ours[0] == theirs[0] and _agree(ours[1], theirs[1]):
        return True
    if _is_equation(expected) and not _letters(expected):
        return _same_sides(given, expected)
    values = _values_of(given, expected)
    if values is None or bool(_letters(given)) < (_is_equation(expected) and bool(_letters(expected))):
        return False
    return any(_agree(value, expected) for value in values) and all(
        _agree(value, expected, computed=True) for value in values
    )


def _said_of(text: str) -> tuple[str | None, str]:
    r"""The unknown that is said to be in a set, if the text says so, and the set."""
    parts = _SAID_OF.split(text.replace("∈", r"\in "))
    if len(parts) == 2 and _NAME.fullmatch(parts[0]) and re.match(r"\s*(?:[\[(\\])", parts[1]):
        return "".join(parts[0].split()), parts[1]
    return None, text


def _agree(given: str, expected: str, *, computed: bool = False) -> bool:
    """Whether two answers are built alike and agree place by place; ``computed`` lets a computation be a number."""
    given, expected = (_SIZED.sub("", text).strip() for text in (given, expected))
    tables = _table(given), _table(expected)
    if tables[0] is not None or tables[1] is not None:
        return None not in tables and _same_table(*tables)
    sets = _condition(given), _condition(expected)
    if None not in sets or any(_is_relation(text) for text in (given, expected)):
        given, expected = (
            text if found is None else found for text, found in zip((given, expected), sets, strict=True)
        )
    given, expected = _as_intervals(given), _as_intervals(expected)
    ours, theirs = _both_signs(_members(given)), _both_signs(_members(expected))
    if len(ours) > 1 or len(theirs) > 1:
        return len(ours) == len(theirs) and _paired(ours, theirs)
    given, expected = ours[0], theirs[0]
    ours, theirs = _coordinates(given), _coordinates(expected)
    if ours or theirs:
        shapes = [(text[0], text[-1], len(parts)) for text, parts in ((given, ours), (expected, theirs)) if parts]
        return len(shapes) == 2 and shapes[0] == shapes[1] and all(map(_agree, ours, theirs))
    for separator, same in ((r"\cup", _paired), (r"\setminus", _in_order)):
        ours, theirs = _top_level(given, separator), _top_level(expected, separator)
        if len(ours) == len(theirs) > 1:
            return same(ours, theirs)
    return _same_value(given, expected, computed=computed)


def _in_order(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    return all(map(_agree, ours, theirs))


def _paired(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether each member of a list agrees with one of the other's, each with another one."""
    left = list(theirs)
    for text in ours:
        found = next((place for place, other in enumerate(left) if _squeezed(text) == _squeezed(other)), None)
        if found is None:
            found = next((place for place, other in enumerate(left) if _agree(text, other)), None)
        if found is None:
            return False
        del left[found]
    return True


def _top_level(text: str, separator: str) -> list[str]:
    """The text cut at a separator that stands within no bracket and no environment."""
    parts, depth = [""], 0
    for token in _tokens(_SIZED.sub("", text)):
        depth += (token in _OPENING or token.startswith(r"\begin{")) - (token in _CLOSING or token.startswith(r"\end{"))
        if token == separator and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _tokens(text: str) -> list[str]:
    return re.findall(rf"\\(?:begin|end)\{{[^{{}}]*\}}|{TOKEN.pattern}", text, re.DOTALL)


def _members(text: str) -> list[str]:
    """The members of a list or of a set in braces."""
    text = _SIZED.sub("", text).strip()
    if text.startswith(r"\{") and _closes_at_end(text):
        text = text[2:-2]
    return [part.strip() for part in _top_level(text, ",")]


def _both_signs(members: Sequence[str]) -> list[str]:
    r"""The members, those with ``\pm`` written out."""
    signed = []
    for part in members:
        for upper, lower in (("+", "-"), ("-", "+")) if r"\pm" in part else (("", ""),):
            signed.append(part.replace(r"\pm", upper).replace(r"\mp", lower) if upper else part)
    return signed


def _closes_at_end(text: str) -> bool:
    """Whether the bracket at the start is the one at the end."""
    depth = 0
    tokens = _tokens(text)
    for place, token in enumerate(tokens):
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0:
            return place == len(tokens) - 1
    return False


def _coordinates(text: str) -> list[str]:
    """What a point or an interval has between its brackets; nothing for anything else."""
    if text[:1] not in ("(", "[") or text[-1:] not in (")", "]") or not _closes_at_end(text):
        return []
    parts = _top_level(text[1:-1], ",")
    return parts if len(parts) > 1 else []


# Sets of numbers ------------------------------------------------------------------------------------------------------

_BUILDER = re.compile(
    r"\\\{\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\s*\{R\})?\s*(?:\\mid(?![A-Za-z])|\\vert(?![A-Za-z])|\||:|\\colon)\s*(.*)\\\}",
    re.DOTALL,
)
_ORDER = re.compile(r"(<|>|\\[lg][et](?![A-Za-z]))")
_LESS = {"<": ("(", ")"), r"\lt": ("(", ")"), r"\le": ("[", "]")}
_WITHOUT = re.compile(r"\s*\\mathbb\s*\{R\}\s*\\setminus\s*\\\{(.*)\\\}\s*")


def _condition(text: str) -> str | None:
    r"""The condition of ``\{x \mid x>3\}``, on ``x`` whatever its letter is."""
    found = _BUILDER.fullmatch(text)
    tokens = TOKEN.findall(found[2]) if found else []
    return "".join("x" if token == found[1] else token for token in tokens) if found and found[1] in tokens else None


def _as_intervals(text: str) -> str:
    r"""``\{x \mid 1 < x \le 3\}`` and ``\mathbb{R} \setminus \{1\}`` as intervals; other texts as they are."""
    left_out = _WITHOUT.fullmatch(text)
    if left_out is not None:
        values = {member: _parsed(member) for member in _members(left_out[1])}
        if any(value is None or not value.is_number for value in values.values()):
            return text
        ends = [r"-\infty", *sorted(values, key=lambda member: float(values[member])), r"\infty"]
        return r" \cup ".join(f"({low},{high})" for low, high in itertools.pairwise(ends))
    parts = [part.strip() for part in _ORDER.split(_condition(text) or "")]
    if parts[1:2] and parts[1] not in _LESS:
        parts = [{">": "<", r"\gt": "<", r"\ge": r"\le"}.get(part, part) for part in reversed(parts)]
    if len(parts) == 3:
        parts = ([r"-\infty", "<"] if parts[0] == "x" else []) + parts + (["<", r"\infty"] if parts[2] == "x" else [])
    if len(parts) != 5 or parts[2] != "x" or parts[1] not in _LESS or parts[3] not in _LESS:
        return text
    return f"{_LESS[parts[1]][0]}{parts[0]},{parts[4]}{_LESS[parts[3]][1]}"


# Matrices -------------------------------------------------------------------------------------------------------------

_MATRICES = re.compile("(?:[pbB]|p?small|bsmall)?matrix|array|cases")
_TABLE = re.compile(
    r"(?P<factor>[^=+,&]*?)(?P<opening>\\\{|\\\||[\[(|]?)\s*\\begin\{\s*(?P<name>[A-Za-z]+)\s*\}(?:\{[lcr| ]*\})?"
    r"(?P<body>.*)\\end\{\s*(?P=name)\s*\}\s*(?P<closing>\\\}|\\\||[\])|.]?)\s*"
    r"(?P<turned>\^\s*\{?\s*(?:T|\\top|\\intercal|\\(?:text|mathrm|mathsf)\{T\})\s*\}?)?\s*",
    re.DOTALL,
)
_LINE = re.compile(r"\\hline(?![A-Za-z])|^\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]")


def _table(text: str) -> tuple[str, str, list[list[str]]] | None:
    """Kind, factor and rows of a text that is one matrix; None for determinants, which are numbers, and all else."""
    found = _TABLE.fullmatch(text)
    if (
        found is None
        or not _MATRICES.fullmatch(found["name"])
        or found["opening"] in ("|", r"\|")
        or r"\det" in found["factor"]
    ):
        return None
    depths = [token.startswith(r"\begin{") - token.startswith(r"\end{") for token in _tokens(found["body"])]
    if any(sum(depths[:place]) < 0 for place in range(len(depths) + 1)):
        return None  # several matrices
    body = re.sub(r"\\(?:cr|newline|tabularnewline)(?![A-Za-z])", r"\\\\", found["body"])
    lines = [_LINE.sub("", line) for line in _top_level(body, r"\\")]
    rows = [[cell.strip() for cell in _top_level(line, "&")] for line in lines if line.strip()]
    if found["turned"] and len({len(row) for row in rows}) == 1:
        rows = [list(column) for column in zip(*rows, strict=True)]
    kind = "cases" if "cases" in found["name"] or found["opening"] == r"\{" else "matrix"
    return kind, re.sub(r"\\(?:cdot|times)\s*$", "", found["factor"].strip()), rows


def _same_table(ours: tuple[str, str, list[list[str]]], theirs: tuple[str, str, list[list[str]]]) -> bool:
    if ours[0] != theirs[0] or [len(row) for row in ours[2]] != [len(row) for row in theirs[2]]:
        return False
    factors = bool(ours[1] or theirs[1])
    cells = [
        [f"{factor}({cell})" if factors else cell for row in rows for cell in row] for _, factor, rows in (ours, theirs)
    ]
    return all(_agree(cell, other, computed=factors) for cell, other in zip(*cells, strict=True))


# Single values: what is refused before math-verify reads them ---------------------------------------------------------

#: What math-verify reads as something people do not mean: `7 \approx 8` as 7, `2^10` as 20, `[-\infty` as half-open.
_MISREAD = re.compile(
    r"\\(?:approx|equiv|cong|sim|doteq)|[≈≡→⇒]|\\\\|\^\s*\d\d|\[\s*[-+]?\s*(?:\\infty|∞)|(?:\\infty|∞)\s*\]"
)
_WORD = re.compile(r"[A-Za-z\u00b5]+")
#: Marks that math-verify drops or divides at: primes, the colons of times and ratios, halves of the day.
_LITERAL = re.compile(r"['\u2032\u2033\u2019\"]|\\prime(?![A-Za-z])|(?<!\\):|(?<![A-Za-z\\])[ap]\.?\s*m\.?(?![A-Za-z])")
#: Names of points and of things with a number: read as LaTeX they are products, and `CBA` would be `ABC`.
_NAME_OF_POINTS = re.compile(r"[A-Z]{2,}|(?<![A-Za-z\\\d.])[A-Za-z]+\d+")
_FRACTION = re.compile(rf"\\(?:[dtc]?frac|[dt]?binom)\s*({GROUP}|\d)\s*({GROUP}|\d)")
_ROOT = re.compile(rf"\\sqrt\s*(?:\[[^\]]*\]\s*)?({GROUP}|\d)")
#: A function with its base or power, which a number may follow, as in ``\log_{2} 8``.
_INDEXED = re.compile(rf"\\(?:log|ln|lg|sin|cos|tan|cot|sec|csc|sum|prod|int|lim)(?:\s*[_^]\s*(?:{GROUP}|\\?\w))+")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[^{}]*\}(?:\{[lcr| ]*\})?")
#: Two values without an operator; ``\x02`` ends a fraction, a root or a word.
_SIDE_BY_SIDE = re.compile(r"\d\.?[\s{}]+\.?\d|(?:[)\]}\x02]|\\circ(?![A-Za-z]))[\s{}]*\.?\d")
#: Computations that no answer leaves to be done, and those that a number leaves to nobody.
_OPERATION = re.compile(
    r"\\(?:sum|prod|i*nt|oint|lim)(?![A-Za-z])|\\[dt]?frac\s*\{\s*(?:d|\\partial)\s*\}\s*\{\s*(?:d|\\partial)"
)
_NUMERIC_OPERATION = re.compile(
    r"!|\\(?:[dt]?binom|choose|gcd|lcm|max|min|[bp]?mod|lfloor|lceil|det)(?![A-Za-z])|matrix"
)
_UNSIGNED = rf"\(?(?:{_DIGITS})(?:\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{[+-]?\d+\}}|\d(?!\d)))?\)?"
_NUMERAL = re.compile(rf"[+-]?\s*(?:{_UNSIGNED}|10\s*\^\s*(?:\{{[+-]?\d+\}}|\d(?!\d)))\s*(?:\\?%)?")
_QUOTIENT = re.compile(
    rf"[+-]?\s*(?:(?:\d+\s*)?\\[dtc]?frac\s*(?:\{{\s*[+-]?{_UNSIGNED}\s*\}}|\d)\s*(?:\{{\s*[+-]?{_UNSIGNED}\s*\}}|\d)"
    rf"|{_UNSIGNED}\s*/\s*{_UNSIGNED})\s*(?:\\?%)?"
)
#: Brackets in brackets, powers in powers and signs beyond a reference's that no answer has and that take seconds.
_DEEPEST, _LONGER, _TOWER = 40, 300, re.compile(r"\^\s*(?:\{[^{}]*|\()\^\s*(?:\{[^{}]*|\()\^")


def _too_large(given: str, expected: str) -> bool:
    """Whether the answer is a tower of powers, brackets in brackets or a row of signs that its reference is not."""
    tower = _TOWER.search(given) is not None and _TOWER.search(expected) is None
    tokens = _tokens(given)
    deepest = max(itertools.accumulate(((token in _OPENING) - (token in _CLOSING) for token in tokens), initial=0))
    signs = sum(not token.isdigit() for token in tokens)
    return tower or deepest > _DEEPEST or signs > _LONGER + 4 * len(_tokens(expected))


def _same_value(given: str, expected: str, *, computed: bool) -> bool:
    if _is_relation(given) != _is_relation(expected):
        return False
    given, expected = _with_units(given, expected), _with_units(expected, given)
    if _other_structure(given, expected) or _other_unit(given, expected):
        return False
    given, expected = _without_units(given), _without_units(expected)
    numbers = plain_number(_squeezed(given)), plain_number(_squeezed(expected))
    if None not in numbers:
        return numbers[0] == numbers[1]
    if not computed and _unevaluated(given, expected):
        return False
    return _same(given, expected)


def _unevaluated(given: str, expected: str) -> bool:
    """Whether the answer leaves a computation to be done that its reference does not."""
    left = [{found[0] for found in _OPERATION.finditer(text)} for text in (given, expected)]
    if left[0] - left[1]:
        return True
    if not _letters(expected) and _NUMERIC_OPERATION.search(given) and not _NUMERIC_OPERATION.search(expected):
        return True
    bare, number = (
        _unbracketed(given),
        plain_number(_squeezed(_unbracketed(expected)).removesuffix("%").removesuffix("\\")),
    )
    whole = number is not None and number[2] >= 0
    irrational = re.search(r"\\(?:pi|sqrt|ln|log)(?![A-Za-z])|(?<![A-Za-z])e(?![A-Za-z])", bare)
    return (
        number is not None and not _NUMERAL.fullmatch(bare) and (whole or not (_QUOTIENT.fullmatch(bare) or irrational))
    )


def _unbracketed(text: str) -> str:
    text = text.strip()
    while len(text) > 2 and text[0] in "([{" and _closes_at_end(text):
        text = text[1:-1].strip()
    return text


def _other_structure(answer: str, reference: str) -> bool:
    """Whether the answer is written otherwise than its reference answer."""
    names = [sorted(_NAME_OF_POINTS.findall(TEXT.sub(r"\1", text))) for text in (answer, reference)]
    return (
        _strange_words(answer, reference)
        or names[0] != names[1]
        or any(test(answer) and not test(reference) for test in (_MISREAD.search, _side_by_side))
        or _LITERAL.search(answer + reference) is not None  # only the same text is the same
    )


def _strange_words(answer: str, reference: str) -> bool:
    """Whether the answer has words that are no unit and not in the reference, or signs that a text command hides."""
    known = {word.lower() for word in _WORD.findall(reference)} | _UNIT_WORDS
    contents = [content.strip() for content in TEXT.findall(answer)]
    hidden = any(text and not _WORD.search(text) for text in contents)
    return hidden or any(word.lower() not in known for text in contents for word in _WORD.findall(text))


def _side_by_side(text: str) -> bool:
    r"""Whether a number follows another value without an operator; math-verify adds them: ``203 1`` would be 204."""
    if any(int(a or b) >= int(c or d) for _, a, b, c, d in MIXED.findall(text)):
        return True  # a whole number before an improper fraction
    plain = _INDEXED.sub(r"\\log ", TEXT.sub("\x02", _SIZED.sub(" ", _ENVIRONMENT.sub("&", text))))
    for _ in range(4):  # roots and fractions, inner ones too, as marks around their arguments
        plain = _ROOT.sub(lambda found: f"\x01{found[1][1:-1] or found[1]}\x02", plain)
        plain = _FRACTION.sub(lambda m: f"\x01{m[1][1:-1] or m[1]}\x01{m[2][1:-1] or m[2]}\x02", plain)
    return _SIDE_BY_SIDE.search(re.sub(r"\\[,!]", " ", plain)) is not None


# Single values: math-verify -------------------------------------------------------------------------------------------

#: Values of the unknowns where two expressions are compared before sympy simplifies anything.
_POINT = (1.3717, 0.6411, 1.7233, 0.8537, 1.1939, 0.4793, 1.5491)
#: Relative difference of two values that are not the same, and the absolute one where a decimal is rounded.
_APART, _ROUNDED = 1e-9, 2e-6
#: Whole numbers of more digits take sympy minutes; none is an answer, but for the very text of its reference.
_HUGE = 10**5000


def _same(given: str, expected: str) -> bool:
    import math_verify

    ours, theirs = _parsed(given), _parsed(expected)
    if ours is None or theirs is None or _apart(ours, theirs) or _other_relation(ours, theirs):
        return False
    return bool(math_verify.verify([theirs], [ours], timeout_seconds=None, raise_on_error=True))


def _apart(ours: Any, theirs: Any) -> bool:
    """Whether two expressions differ at a point: seen at once where simplifying takes seconds, however small they are."""
    import sympy

    if not all(isinstance(value, sympy.Expr) and not (value.is_Symbol or value.is_Matrix) for value in (ours, theirs)):
        return False
    unknowns = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    values = _at(ours, unknowns, 0), _at(theirs, unknowns, 0)
    if not all(value is not None and value.is_finite for value in values):
        return False
    rounded = ours.has(sympy.Float) or theirs.has(sympy.Float)
    size = max(abs(value) for value in values)
    if size > _HUGE:
        return True
    return bool(abs(values[0] - values[1]) > max(_APART * size, _ROUNDED if rounded else 0))


def _at(value: Any, unknowns: Sequence[Any], turn: int) -> Any:
    """The number that an expression is at one of the points; None where it is none."""
    point = {unknown: _POINT[(place + turn) % len(_POINT)] for place, unknown in enumerate(unknowns)}
    found = value.evalf(20, subs=point)
    return found if found.is_number else None


def _other_relation(ours: Any, theirs: Any) -> bool:
    """Whether a relation that no real number, or every one, satisfies is compared with one of other terms.

    math-verify compares solutions, and relations without any have the same.
    """
    import sympy

    if not all(isinstance(value, sympy.core.relational.Relational) for value in (ours, theirs)):
        return False
    unequal = [isinstance(value, sympy.Ne) for value in (ours, theirs)]
    if ours.free_symbols != theirs.free_symbols or unequal[0] != unequal[1]:
        return True
    unknowns = sorted(theirs.free_symbols, key=str)
    sides = [value.lhs - value.rhs for value in (ours, theirs)]
    factors = [_at(sides[0] / sides[1], unknowns, turn) for turn in range(3)]
    if None not in factors and all(abs(factor - factors[0]) <= _APART * abs(factors[0]) for factor in factors):
        return False
    try:
        return unequal[0] or sympy.solve(theirs, unknowns) in ([], sympy.true, sympy.false)
    except NotImplementedError:  # sympy cannot solve it, and math-verify compares the terms
        return False


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    r"""The sympy value of a whole box; None where it cannot be read.

    As math-verify's `parse` reads it, but for two things that it gives no setting for: a value behind another
    multiplies it (``3(7)`` is no mixed number 10), and letters keep their case.
    """
    from latex2sympy2_extended import NormalizationConfig, normalize_latex
    from math_verify.grader import should_treat_as_complex

    text = MIXED.sub(lambda m: rf"({m[1]}+\frac{{{m[2] or m[3]}}}{{{m[4] or m[5]}}})", text)
    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="last")
    latex = normalize_latex(rf"\boxed{{{text}}}", config=spelling)
    try:
        return _reader()(is_real=not should_treat_as_complex(latex)).parse(latex)
    except Exception as error:
        if type(error) is not Exception:
            raise
        return None


@functools.cache
def _reader() -> Any:
    """latex2sympy's reader, without its rule that adds a whole number to the rational behind it."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

    class Reader(_Latex2Sympy):  # type: ignore[misc]
        def __init__(self, *, is_real: bool) -> None:
            super().__init__(is_real=is_real, config=ConversionConfig(lowercase_symbols=False))

        def convert_postfix_list(self, arr: list[Any], i: int = 0) -> Any:
            factor = self.convert_postfix(arr[i])
            if isinstance(factor, list):  # d/dx, which takes what follows
                return sympy.Derivative(self.convert_postfix_list(arr, i + 1), factor[0])
            if i == len(arr) - 1 or not isinstance(factor, sympy.Expr | sympy.MatrixBase):
                return factor
            rest = self.convert_postfix_list(arr, i + 1)
            matrices = isinstance(factor, sympy.MatrixBase) or isinstance(rest, sympy.MatrixBase)
            return (self.mat_mul_flat if matrices else self.mul_flat)(factor, rest)

    return Reader


# Equations ------------------------------------------------------------------------------------------------------------

_GREEK = """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau
    phi varphi chi psi omega ell Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"""
_LETTER_TOKENS = frozenset("abcdfghjklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") | {
    rf"\\{name}" for name in _GREEK.split()
}
_QUANTITIES = "area volume perimeter answer total sum length probability distance time speed cost"
_INDEX = r"(?:\s*_\s*(?:\w|\{\s*(?:\w+|\\(?:text|mathrm)\s*\{\s*\w+\s*\}|\\m(?:ax|in))\s*\}))?"
_UNKNOWN = rf"(?:(?!(?-i:e)(?![A-Za-z]))[A-Za-z]|\\(?:{'|'.join(_GREEK.split())})(?![A-Za-z])){_INDEX}"
_NAME = re.compile(
    rf"\s*(?:(?P<function>{_UNKNOWN})\s*\(\s*(?P<arguments>{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*)\s*\)"
    rf"|\((?P<point>\s*{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*\s*)\)|(?P<unknown>{_UNKNOWN})"
    rf"|\\(?:text|mathrm)\s*\{{\s*(?:{'|'.join(_QUANTITIES.split())})\s*\}})\s*",
    re.IGNORECASE,
)
#: What names one number, where no other unknown has to be found: `|z|`, `f(2)`, `P(A)`, `AB`, `\angle ABC`, `\sin A`.
_QUANTITY = re.compile(
    rf"\s*(?:\|[^|]+\||\\(?:lvert|lVert|\|).+\\(?:rvert|rVert|\|)|[A-Za-z](?:\^\{{-1\}})?\s*\(\s*[-+\d.,/\s]+\)|[PE]\s*[(\[].+[)\]]"
    rf"|(?:m\s*)?(?:\\(?:angle|triangle|overline|widehat|bar|vec|hat|overrightarrow|mathbf|mathbb|gcd|det|deg|dim|Pr|arg|operatorname)\s*)+"
    rf"(?:{GROUP}|\w|[(\[][^=]*[)\]]|\s)*|\[?[A-Z]{{2,}}\]?|\\(?:sin|cos|tan|cot|sec|csc)\s*\(?\s*(?:[A-Z]|\\(?:angle|{'|'.join(_GREEK.split())})(?![A-Za-z])[\sA-Z]*)\)?)\s*"
)
_SYMBOL = re.compile(r"\\[A-Za-z]+|[A-Za-z]")


def _is_relation(text: str) -> bool:
    return any(len(_top_level(text, sign)) > 1 for sign in ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\lt", r"\gt"))


def _is_equation(text: str) -> bool:
    """Whether an equals sign stands within no bracket; the range of a sum makes no equation."""
    return len(_top_level(text, "=")) > 1


def _same_sides(given: str, expected: str) -> bool:
    """Whether equations without unknowns have the same numbers and, side by side, the same values."""
    ours, theirs = _top_level(given, "="), _top_level(expected, "=")
    numbers = [sorted(re.findall(r"\d+(?:\.\d+)?", text)) for text in (given, expected)]
    agreed = (
        all(_agree(*pair, computed=True) for pair in zip(sides, theirs, strict=False)) for sides in (ours, ours[::-1])
    )
    return numbers[0] == numbers[1] and len(ours) == len(theirs) and any(agreed)


def _values_of(given: str, expected: str) -> list[str] | None:
    """The sides of an answer that must all equal the reference answer; None for an equation that names no value.

    One side may be a bare unknown that no other side has: `2x=10`, `x+1=10` and `x=2x+3` name no value.
    """
    sides = [side for side in _top_level(given, "=") if side.strip()]
    if _is_equation(expected) or len(sides) < 2:
        return [given]
    if not _letters(expected) and _names_number(sides[0]):
        return sides[1:]
    names = [_NAME.fullmatch(side) for side in sides[:-1]]
    values = [side for side, name in zip(sides, [*names, None], strict=True) if name is None]
    unknowns = {name["unknown"] or name["function"] for name in names if name is not None} - {None}
    symbols = {symbol for value in values for symbol in _SYMBOL.findall(value)}
    return None if len(names) - names.count(None) > 1 or unknowns & symbols else values


def _names_number(side: str) -> bool:
    """Whether a side names a number instead of asking for one, as ``a+b`` does: no equation gives two unknowns."""
    several = len(set(re.findall(rf"(?<!\\)(?<![A-Za-z\\]){_UNKNOWN}", side))) > 1
    return _QUANTITY.fullmatch(side) is not None or (
        several and re.search(r"[A-Za-z]\s*\(|,|\\(?!frac|cdot)", side) is None
    )


def _letters(text: str) -> set[str]:
    """The letters that are unknowns, without those of commands, texts and the constants e and i."""
    return _LETTER_TOKENS & set(TOKEN.findall(TEXT.sub(" ", text)))


def _named(expected: str) -> tuple[str, str] | None:
    r"""The one bare unknown of equations and the value that they give it; None where they give none.

    `y=2x+3` names `2x+3`, `x=4,x=5` the list `4,5`, and a function of its own argument, `f(x)=x^2`, has a value. But
    `x+y=1` and `f(x)=0` are equations to be solved, and `x=5,y=6` says which is which.
    """
    first, *others = _members(expected)
    named = [_named_value(part) for part in (first, *others) if _is_equation(part)]
    if not _is_equation(first) or None in named or len(named) not in (1, 1 + len(others)):
        return None
    pairs = [pair for pair in named if pair is not None]
    if len({name for name, _ in pairs}) > 1:
        return None
    return pairs[0][0], ",".join([*(value for _, value in pairs), *(others if len(named) == 1 else [])])


def _named_value(equation: str) -> tuple[str, str] | None:
    """Name and value of an equation whose first side is a name that no other side has."""
    first, *sides = _top_level(equation, "=")
    name = _NAME.fullmatch(first)
    if name is None or not all(side.strip() for side in sides):
        return None
    symbols = {symbol for side in sides for symbol in _SYMBOL.findall(TEXT.sub(" ", side))}
    # A point's unknowns, or one unknown without its index: `a_n=2n+1` has a value, `a_n=2a_{n-1}` none.
    own = set(_SYMBOL.findall(name["point"] or "") or _SYMBOL.findall(name["function"] or name["unknown"] or "")[:1])
    middle_names = any(_NAME.fullmatch(side) for side in sides[:-1])
    of_argument = name["function"] is None or bool(symbols & set(_SYMBOL.findall(name["arguments"])))
    if own & symbols or middle_names or not of_argument:
        return None
    last = _NAME.fullmatch(sides[-1])
    return None if last is not None and last["function"] else ("".join(first.split()), sides[-1])


# Units and number bases -----------------------------------------------------------------------------------------------

#: Every spelling of a unit has the first one's name.
_SPELLINGS = (
    "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre", "km kilometer kilometre",
    "in inch inche", "ft foot feet", "yd yard", "mi mile", "mg milligram", "g gram", "kg kilogram", "lb pound",
    "oz ounce", "s sec second", "min minute", "h hr hour", "d day", "week wk", "month", "yr year",
    "ml milliliter millilitre", "l liter litre", "mph", "gallon gal", "quart", "pint", "acre", "calorie",
    "degree deg", "radian rad", "celsiu c", "fahrenheit f", "cent", "dollar usd", "euro eur", "sterling", "yen",
    "rupee", "percent", "hz", "n", "j", "w", "v",
)  # fmt: skip
_UNIT_NAMES = {spelling: names.split()[0] for names in _SPELLINGS for spelling in names.split()}
#: Words for what was counted, which say nothing of the amount.
_COUNTED = """unit way people person student child children boy girl man men woman women ball coin card point side edge
    vertex vertices face triangle rectangle circle digit integer number value solution root pair set step turn round
    game match team player page book pen pencil apple orange egg cookie cake pizza slice cup bottle box bag car bus
    train trip ticket friend animal cat dog fish bird cow chicken sheep horse tree flower plant worker job question test
    class room house seat stamp toy bolt piece part marble penny pennies nickel dime quarter term factor divisor
    multiple path outcome arrangement permutation combination function word letter color colour per of"""
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "\u00b2": 2, "\u00b3": 3}
_UNIT_WORDS = frozenset(
    word + ending for word in (*_UNIT_NAMES, *_COUNTED.split(), "square", "sq", "cubic") for ending in ("", "s", "es")
)
_UNIT = re.compile(
    r"(?:(?P<slash>/)\s*)?\\(?:text|mbox|mathrm|textrm)\s*\{(?P<text>[^{}]*)\}"
    r"\s*(?:\^\s*(?:(?P<digit>\d)|\{\s*(?P<power>[+-]?\d+)\s*\}))?"
)
#: Words behind a number, perhaps with powers and strokes: `5 square feet`, `5 km/h`.
_BARE_UNIT = re.compile(
    r"(?<=[\d})])((?:\s|\\,)*)([A-Za-z]+(?:(?:\s*\^\s*\{?\s*[23]\s*\}?)?\s*/?\s*[A-Za-z]+)*)(?=\s*(?:\^\s*\{?\s*\d\s*\}?)?\s*$)"
)
#: What a unit is written as at the end of a value.
_UNIT_TAIL = re.compile(
    r"(?:\s|\\,)*(?:/?\s*\\(?:text|mbox|mathrm|textrm)\s*\{[^{}]*\}\s*(?:\^\s*(?:\d|\{\s*[+-]?\d+\s*\}))?\s*)+$"
    r"|\s*\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})\s*$"
)
_UNIT_PIECE = re.compile(r"[A-Za-zµ]+|[\u00b2\u00b3/]")
#: Units that are written as signs.
_SIGNS = (
    (re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})"), r"\\text{ degree }"),
    (re.compile(r"\\\$"), r"\\text{ dollar }"),
    (re.compile(r"\\?%"), r"\\text{ percent }"),
)
_BASE = re.compile(r"[\d)]\s*_\s*\{?\s*(\d+)\s*\}?")


def _other_unit(given: str, expected: str) -> bool:
    """Whether the answer has a number base, or both have a unit, that is not the other's.

    A unit that only one of them has does not count; of measures all must agree, of counted things one.
    """
    bases = [set(_BASE.findall(text)) for text in (given, expected)]
    if bases[0] and bases[0] != bases[1]:
        return True
    ours, theirs = _units(given), _units(expected)
    if r"\pi" in given and "degree" in ours.keys() - theirs.keys():
        return True  # a multiple of pi counts radians
    if not ours or not theirs:
        return False
    known = set(_UNIT_NAMES.values())
    measures = [{name: power for name, power in side.items() if name in known} for side in (ours, theirs)]
    counted = [side.keys() - known - {"per", "of", "unit"} for side in (ours, theirs)]
    if not all(measures):
        return not ours.keys() & theirs.keys()
    return measures[0] != measures[1] or (all(counted) and not counted[0] & counted[1])


def _units(text: str) -> dict[str, int]:
    """Every unit with its power, negative behind a stroke or "per"."""
    for pattern, unit in _SIGNS:
        text = pattern.sub(unit, text)
    units: Counter[str] = Counter()
    below = False
    for match in _UNIT.finditer(text):
        below, waiting, last = below or match["slash"] is not None, 1, ""
        for piece in _UNIT_PIECE.findall(re.sub(r"\bper\s+cent\b", "percent", match["text"].lower())):
            if piece in ("per", "/"):
                below = True
            elif piece in ("squared", "cubed", "\u00b2", "\u00b3"):
                units[last] *= _POWERS[piece]
            elif piece in _POWERS:
                waiting = _POWERS[piece]
            else:
                last = _unit_name(piece)
                units[last] += -waiting if below else waiting
                waiting = 1
        if last and (match["digit"] or match["power"]):
            units[last] *= int(match["digit"] or match["power"])
    return {name: power for name, power in units.items() if power}


def _unit_name(word: str) -> str:
    """A unit's or counted thing's one name, without its plural."""
    names = (word, word.removesuffix("s"), word.removesuffix("es"))
    return next((_UNIT_NAMES[name] for name in names if name in _UNIT_NAMES), names[1])


def _with_units(text: str, other: str) -> str:
    r"""The value with its unit in a text command, as in ``5\text{ cm}``.

    Known words of two letters and more are units; a letter is an unknown, unless the other text has it as a unit.
    """
    bare = _BARE_UNIT.search(text)
    if bare is None:
        return text
    words = re.findall("[A-Za-z]+", bare[2])
    known = all(word.lower() in _UNIT_WORDS and (len(word) > 1 or len(words) > 1) for word in words)
    if not known and [_unit_name(words[0])] != [_unit_name(word.strip()) for word in TEXT.findall(other)]:
        return text
    unit = re.sub(r"[A-Za-z]+(?:\s+[A-Za-z]+)*", lambda match: rf"\text{{{match[0]}}}", bare[2])
    return text[: bare.start()] + unit + text[bare.end() :]


def _without_units(text: str) -> str:
    """The value alone; a dollar sign and a currency before it are units too."""
    bare = re.sub(r"^\s*(-?)\s*\\?\$", r"\1", text)
    bare = _UNIT_TAIL.sub("", _UNIT_TAIL.sub("", bare)).strip()
    return bare or text
