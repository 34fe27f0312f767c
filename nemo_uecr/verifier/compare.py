r"""Whether two answers are the same: plain numbers at once, the rest by math-verify after a layer of vetoes.

math-verify is lenient: it takes the last of several answers, adds numbers written side by side, and drops words,
units and brackets. A policy finds such leniency and exploits it. So an answer is read as a structure first: rows of a
matrix, coordinates of a point, members of a list. Structures are compared place by place, and only single values reach
math-verify (`value.py`), unless one is written otherwise than its reference or has another unit. A wrong answer that is
rewarded does more harm than a right one that is not: in doubt, the answer is wrong. docs/verifier.md has the rules.
"""

from __future__ import annotations

import itertools
import logging
import re
import string
from collections.abc import Sequence

from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.spelling import (
    GREEK_LETTER,
    GROUP,
    TEXT,
    TOKEN,
    closes_at_end,
    is_relation,
    letters,
    plain_number,
    spelled,
    squeezed,
    top_level,
    without_point,
)
from nemo_uecr.verifier.value import OPERATION, parsed, prose, same_value, too_large

#: A comma next to a blank separates members of a list; it does not set thousands apart.
_LISTED = re.compile(r"\s,|(?<!\\),\s")
_OR = re.compile(r"\\(?:lor|vee)(?![A-Za-z])|(?<![A-Za-z])or(?![A-Za-z])")
_AND = re.compile(r"\\(?:land|wedge)(?![A-Za-z])|(?<![A-Za-z])and(?![A-Za-z])")
#: A product of vectors, which have an order; a dot between them makes a number of them.
_CROSS = re.compile(
    r"\\(?:vec|mathbf|overrightarrow|boldsymbol)\s*\{[^{}]*\}\s*\\(?:times|cdot)\s*\\(?:vec|mathbf|overrightarrow|boldsymbol)"
)
_WORDS = re.compile(r"[A-Z]?[a-z]{2,}(?: [A-Z]?[a-z]{2,})+")
_CONDITION_SIGN = re.compile(r"[<>]|\\(?:[lg][et]q?(?:slant)?|neq?|land|lor|wedge|vee)(?![A-Za-z])")
_ONE_WORD = re.compile(r"[A-Za-z][a-z]{2,}")


def judge_plain(given: str, expected: str) -> Verdict | None:
    """The verdict on equal texts, plain numbers and single words; None where it takes mathematics."""
    given, expected = without_point(given), without_point(expected)
    if squeezed(given) == squeezed(expected):
        listed = bool(_LISTED.search(given)) and not _LISTED.search(expected)
        return Verdict.WRONG if listed and plain_number(squeezed(expected)) else Verdict.CORRECT
    if _LISTED.search(given) or _LISTED.search(expected):
        return None
    numbers = plain_number(squeezed(given)), plain_number(squeezed(expected))
    if None not in numbers:
        return Verdict.CORRECT if numbers[0] == numbers[1] else Verdict.WRONG
    ours, theirs = (TEXT.sub(r"\1", text).strip("$ ") for text in (given, expected))
    words = _ONE_WORD.fullmatch(theirs) and (_ONE_WORD.fullmatch(ours) or theirs not in expected.split())
    return Verdict.CORRECT if words and ours.lower() == theirs.lower() else None


def compare_answers(given: str, expected: str) -> Verdict:
    """Whether two answers are the same number, expression, set, interval or matrix; without a time limit."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    given, expected = (without_point(" ".join(text.split())) for text in (given, expected))
    try:
        same = _same_choice(given, expected)
        same = _equivalent(given, expected) if same is None else same
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RuntimeError, MemoryError):
        return Verdict.ERROR
    return Verdict.CORRECT if same else Verdict.WRONG


def _equivalent(given: str, expected: str) -> bool:
    if _opposed(given, expected):
        return False
    alternatives = _OR.search(f"{given} {expected}") is not None  # the spelling makes commas of them
    crossed = _CROSS.search(expected) is not None
    given, expected = spelled(given), spelled(expected)
    bare = [squeezed(TEXT.sub(r"\1", text)) for text in (given, expected)]
    if squeezed(given) == squeezed(expected) or bare[0] == bare[1]:
        return True
    if all(map(_WORDS.fullmatch, bare)):
        return bare[0].lower() == bare[1].lower()
    if crossed:
        return False
    if prose(given) or prose(expected) or too_large(given, expected) or _contradicts_itself(given):
        return False
    return _same_answer(*_aligned(given, expected), alternatives)


def _opposed(given: str, expected: str) -> bool:
    """Whether conditions that both hold in one hold one at a time in the other."""
    either, both = ([joined.search(text) is not None for text in (given, expected)] for joined in (_OR, _AND))
    only_either = [one and not all_ for one, all_ in zip(either, both, strict=True)]
    only_both = [all_ and not one for one, all_ in zip(either, both, strict=True)]
    if (only_both[0] and r"\cup" in expected) or (only_both[1] and r"\cup" in given):
        return True
    if not ((only_either[0] and only_both[1]) or (only_both[0] and only_either[1])):
        return False
    named = {part.partition("=")[0].strip() for part in top_level(spelled(expected), ",") if "=" in part}
    return len(named) > 1 or _CONDITION_SIGN.search(expected) is not None


def _same_answer(given: str, expected: str, alternatives: bool) -> bool:
    """Whether two spelled answers are the same; ``alternatives``: they were joined by "or", and make no point.

    Each form of an answer is taken away in turn: numbered solutions, values beside their rounding, the constant of an
    integral, unknowns of a point, the unknown of a set. An equation or single values are left.
    """
    if letter := _numbered_in_one(given, expected):
        return _same_in_order(letter, given, expected)
    values = _either_side(expected)
    if values != {expected}:
        return all(any(_equivalent(each, value) for value in values) for each in _either_side(given))
    if _is_integral(expected):
        given = _CONSTANT.sub("C", given)
    if not alternatives:
        given, expected = _as_point(given, expected), _as_point(expected, given)
    own_unknown, given = _membership(given)
    unknown, expected = _membership(expected)
    if own_unknown and unknown and own_unknown != unknown:
        return False
    if _is_equation(expected) and not _is_ordered(expected):
        return _same_equation(given, expected)
    sides = _values_of(given, expected)
    # One side is the reference itself; the others may be computations that lead to it.
    return any(_agree(side, expected) for side in sides) and all(
        _agree(side, expected, computed=True) for side in sides
    )


def _numbered_in_one(given: str, expected: str) -> str:
    """The letter of solutions that one answer numbers, as in ``x_1=-2, x_2=3``, and the other does not; else ""."""
    for text, other in ((given, expected), (expected, given)):
        if letter := _numbered(text):
            return "" if f"{letter}_" in other else letter
    return ""


def _same_in_order(letter: str, given: str, expected: str) -> bool:
    """Whether two lists have the same values at the same places, with or without ``x=`` or ``x_1=`` before them."""
    name = re.compile(rf"^{letter}(?:_\{{\d\}})?\s*=")
    ours, theirs = ([name.sub("", part) for part in _listed(text)] for text in (given, expected))
    return len(ours) == len(theirs) and all(map(_agree, ours, theirs))


def _is_integral(expected: str) -> bool:
    """Whether a function of one variable ends in a constant: ``x^2 + C``."""
    return re.search(r"\+\s*C$", expected) is not None and len(letters(expected)) == 2


def _same_equation(given: str, expected: str) -> bool:
    """Whether the answer is the equation, or the value that it names."""
    ours, theirs = _named(given), _named(expected)
    if not _is_equation(given):
        return theirs is not None and _agree(given, theirs[1])
    if not letters(expected):
        return _same_sides(given, expected)
    if ours and theirs and ours[0] == theirs[0]:
        return _agree(ours[1], theirs[1])
    # Of a chain math-verify would read two sides.
    return len(top_level(given, "=")) == len(top_level(expected, "=")) and _agree(given, expected)


def _contradicts_itself(given: str) -> bool:
    """Whether an equation of the answer gives two numbers, as ``x=7=5`` does."""
    for member in _listed(given):
        sides = [side for side in top_level(member, "=") if not letters(side)]
        values = [side for side in sides if not TEXT.search(side) and not OPERATION.search(side)]
        if not all(_agree(value, values[-1], computed=True) for value in values[:-1]):
            return True
    return False


def _either_side(text: str) -> set[str]:
    r"""``x=\ln 3 \approx 1.1`` as ``x=\ln 3`` and ``x=1.1``; ``x \approx 1.1`` and ``AB \approx 1.1`` as one value."""
    exact, rounded = [], []
    for member in top_level(text, ","):
        first, *others = top_level(member, r"\approx")
        if len(others) != 1:  # nothing is rounded, or twice
            others = [first := member]
        elif _is_equation(first):
            others = [f"{top_level(first, '=')[0]}={others[0]}"]
        elif letters(first) or not first.strip():  # what is asked for, and no value
            first = others[0] = f"{first}={others[0]}" if _NAME.fullmatch(first) else others[0]
        exact.append(first)
        rounded.append(others[0])
    return {",".join(exact), ",".join(rounded)}


def _aligned(given: str, expected: str) -> tuple[str, str]:
    """Both without a domain that one of them has alone, systems as lists, and functions of the same argument."""
    pair = [_without_braces(text) for text in (given, expected)]
    for domain in (_FOR_ALL, _INTEGER):
        if [domain.search(text) is None for text in pair].count(True) == 1:
            pair = [domain.sub("", text) for text in pair]
    ours, theirs = (_OF_ONE.match(text) for text in pair)
    if ours and theirs and ours[1] == theirs[1] and ours[2] not in "ei":
        given_tokens, tokens = TOKEN.findall(pair[0]), TOKEN.findall(pair[1])
        # The argument of a rule, which has it on the right too; `f(a)=5` is not `f(b)=5`.
        if theirs[2] not in given_tokens and tokens.count(theirs[2]) > 1:
            pair[0] = "".join(theirs[2] if token == ours[2] else token for token in given_tokens)
    return pair[0], pair[1]


def _without_braces(text: str) -> str:
    """The equations of a system side by side; two for one unknown would be a list of its values."""
    table = _table(text.strip())
    if table is None or table[:2] != ("cases", "") or any(len(row) > 1 or "=" not in row[0] for row in table[2]):
        return text
    names = {row[0].partition("=")[0].strip() for row in table[2]}
    return ", ".join(row[0] for row in table[2]) if len(names) == len(table[2]) else text


def _numbered(text: str) -> str:
    """The letter of ``x_1=-2, x_2=3``, solutions in their order; "" for anything else."""
    found = [_NUMBERED.fullmatch(part) for part in _listed(text)]
    names = [each and (each[1], int(each[2])) for each in found]
    letter = found[0][1] if found[0] else ""
    return letter if len(found) > 1 and names == [(letter, 1 + place) for place in range(len(found))] else ""


def _as_point(text: str, other: str) -> str:
    """``x=5,y=3`` as ``(5,3)`` where the other is a point; one value for each unknown, in the order of the alphabet."""
    pairs = [pair for part in _listed(text) if (pair := _named_value(part)) is not None]
    names = [name for name, _ in pairs]
    point = len(_listed(text)) == len(names) > 1 and "".join(names) in string.ascii_letters and r"\infty" not in text
    return f"({','.join(value for _, value in pairs)})" if point and _coordinates(other.strip())[:1] == ["()"] else text


# Lettered options -----------------------------------------------------------------------------------------------------

_OPTION = re.compile(
    r"(?i:(?:the\s+)?(?:option|choice|answer)\s*(?:is)?\s*:?)?\s*(?:\(([A-J])\)|([A-J])(?:\s*[):.]|$))(?:[\s,;.]*$|\s*(.*))"
)
_SILENT = re.compile(r"[$~*]|\\[ ,;:!]|\\q?quad(?![A-Za-z])")
#: What follows the letter names another one, or takes it back; "A green apple" does not.
_ANOTHER = re.compile(r"(?<![A-Za-z\\])(?!A\s+[a-z])[A-J](?![A-Za-z])|(?<![A-Za-z])(?:or|not)(?![A-Za-z])")


def _same_choice(given: str, expected: str) -> bool | None:
    r"""Whether the answer is the option ``B``, ``(B)`` or ``\textbf{(B)}\ 12``; None where the reference is none."""
    ours, theirs = (
        _OPTION.fullmatch(" ".join(_SILENT.sub(" ", TEXT.sub(r"\1", text)).split())) for text in (given, expected)
    )
    if theirs is None or (ours is None and not theirs[3]):
        return None
    if ours is None:
        return _equivalent(given, theirs[3])
    if (ours[1] or ours[2]) != (theirs[1] or theirs[2]):
        return False
    return _equivalent(ours[3], theirs[3]) if ours[3] and theirs[3] else _ANOTHER.search(ours[3] or "") is None


# Structure: what is compared with what --------------------------------------------------------------------------------


def _agree(given: str, expected: str, *, computed: bool = False) -> bool:
    """Whether two answers agree in structure and in every place; ``computed`` accepts a computation for a number."""
    given, expected = given.strip(), expected.strip()
    if squeezed(given) == squeezed(expected):
        return True
    tables = _table(given), _table(expected)
    if tables != (None, None):
        return _same_table(*(table or _column(text) for table, text in zip(tables, (given, expected), strict=True)))
    given, expected = _same_kind_of_set(given, expected)
    ours, theirs = _members(given), _members(expected)
    if len(ours) > 1 or len(theirs) > 1:
        return _paired(ours, theirs)
    [given], [expected] = ours, theirs
    ours, theirs = _coordinates(given), _coordinates(expected)
    if ours or theirs:
        return len(ours) == len(theirs) and ours[0] == theirs[0] and all(map(_agree, ours[1:], theirs[1:]))
    our_sides, their_sides = top_level(given, "="), top_level(expected, "=")
    if len(our_sides) == len(their_sides) == 2 and squeezed(our_sides[0]) == squeezed(their_sides[0]):
        return _agree(our_sides[1], their_sides[1])
    chains = _chain(given), _chain(expected)
    alike = len(chains[0]) == len(chains[1]) > 3 and chains[0][1::2] == chains[1][1::2]
    if alike and all(map(_agree, chains[0][::2], chains[1][::2])):
        return True
    for separator in (r"\cup", r"\setminus"):
        ours, theirs = top_level(given, separator), top_level(expected, separator)
        if len(ours) == len(theirs) > 1:
            return _paired(ours, theirs) if separator == r"\cup" else all(map(_agree, ours, theirs))
    return same_value(given, expected, computed=computed)


def _paired(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether each member of a list agrees with one of the other's, each with another one."""
    left = list(theirs) if len(ours) == len(theirs) else []
    for text in ours:
        written_alike = (other for other in left if squeezed(text) == squeezed(other))
        equal = (other for other in left if _agree(text, other))
        found = next(itertools.chain(written_alike, equal), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _members(text: str) -> list[str]:
    r"""The members of a list or of a set in braces; ``\pm`` makes two."""
    both = [
        [part.replace(r"\pm", sign).replace(r"\mp", "+-"[sign == "+"]) for sign in "+-"] if r"\pm" in part else [part]
        for part in _listed(text)
    ]
    return list(itertools.chain(*both))


def _listed(text: str) -> list[str]:
    text = text.strip()
    text = text[2:-2] if text.startswith(r"\{") and closes_at_end(text) else text
    return [part.strip() for part in top_level(text, ",")]


def _coordinates(text: str) -> list[str]:
    """The brackets of a point or an interval, and its coordinates; empty for anything else."""
    if text[:1] not in ("(", "[") or not closes_at_end(text):
        return []
    parts = top_level(text[1:-1], ",")
    return [text[0] + text[-1], *parts] if len(parts) > 1 else []


# Sets of numbers ------------------------------------------------------------------------------------------------------

_MEMBERSHIP = re.compile(r"(.*)\\in(?![A-Za-z])(\s*[\[(\\].*)")
_BUILDER = re.compile(r"\\\{\s*([A-Za-z])\s*(?:\\in\s*\\mathbb\s*\{R\})?\s*(?:\\mid\b|\\vert\b|\||:|\\colon\b)(.*)\\\}")
_WITHOUT = re.compile(r"\s*\\mathbb\s*\{R\}\s*(?:\\setminus\s*\\\{(.*)\\\}\s*)?")
_UNEQUAL = re.compile(r"^\s*[A-Za-z]\s*\\ne(?![A-Za-z])([^=<>,]+)$")
_ORDER = re.compile(r"(<|>|\\[lg][et](?![A-Za-z]))")
_TURNED = {">": "<", r"\gt": "<", r"\lt": "<", r"\ge": r"\le"}


def _membership(text: str) -> tuple[str, str]:
    r"""Unknown and set of ``y \in [0,1]``, of an inequality its unknown and itself; others have no unknown."""
    found = _MEMBERSHIP.fullmatch(text)
    if found is not None and _NAME.fullmatch(found[1]):
        return "".join(found[1].split()), found[2]
    unknowns = letters(text)
    return ("".join(unknowns) if len(unknowns) == 1 and _interval(_listed(text)[0]) else ""), text


def _same_kind_of_set(given: str, expected: str) -> tuple[str, str]:
    """Sets by their conditions where both have one, else as intervals."""
    ours, theirs = _condition(given), _condition(expected)
    return (ours, theirs) if ours and theirs else (_as_intervals(given), _as_intervals(expected))


def _condition(text: str) -> str | None:
    r"""An inequality, or the condition of ``\{x \mid x>3\}``, on ``x`` whatever its letter is."""
    if is_relation(text):
        return text
    found = _BUILDER.fullmatch(text)
    tokens = TOKEN.findall(found[2]) if found else []
    return "".join("x" if token == found[1] else token for token in tokens) if found and found[1] in tokens else None


def _as_intervals(text: str) -> str:
    r"""``1 < x \le 3``, ``x<1 , x>3``, ``\{x \mid x>3\}`` and ``\mathbb{R} \setminus \{1\}`` as intervals."""
    left_out = _WITHOUT.fullmatch(_UNEQUAL.sub(r"\\mathbb{R} \\setminus \\{\1\\}", text))
    if left_out is not None:
        values = {member: parsed(member) for member in _listed(left_out[1] or "") if member}
        if any(value is None or not value.is_number for value in values.values()):
            return text
        ends = [r"-\infty", *sorted(values, key=lambda member: float(values[member])), r"\infty"]
        return r" \cup ".join(f"({low},{high})" for low, high in itertools.pairwise(ends))
    intervals = [_interval(part) for part in _listed(_condition(text) or text)]
    if any(intervals):  # and a point beside: `x<0 , x=1`
        intervals = [
            found or _one(part) for found, part in zip(intervals, _listed(_condition(text) or text), strict=True)
        ]
    unknowns = {interval and interval[0] for interval in intervals}
    return text if None in unknowns or len(unknowns) > 1 else r" \cup ".join(found[1] for found in intervals if found)


def _chain(text: str) -> list[str]:
    """The sides of inequalities of one direction and the signs between them, from the smallest on."""
    parts = [part.strip() for part in _ORDER.split(text)]
    turned = {part in (">", r"\gt", r"\ge") for part in parts[1::2]}
    return [_TURNED.get(part, part) for part in (parts[::-1] if True in turned else parts)] if len(turned) == 1 else []


def _one(equation: str) -> tuple[str, str] | None:
    """The unknown of ``x=1`` and the set of its value."""
    found = re.fullmatch(r"\s*([A-Za-z])\s*=([^=]+)", equation)
    return found and (found[1], rf"\{{{found[2]}\}}")


def _interval(condition: str) -> tuple[str, str] | None:
    """The unknown of inequalities of one direction, and the numbers that satisfy them; None for anything else."""
    parts = _chain(condition)
    unknown = [letters(part) == {part} for part in parts]
    if len(parts) == 3 and unknown[0] != unknown[2]:
        parts = [r"-\infty", "<", *parts] if unknown[0] else [*parts, "<", r"\infty"]
    if len(parts) != 5 or letters(parts[2]) != {parts[2]}:
        return None
    return parts[2], f"{'(' if parts[1] == '<' else '['}{parts[0]},{parts[4]}{')' if parts[3] == '<' else ']'}"


# Matrices -------------------------------------------------------------------------------------------------------------

_TABLE = re.compile(
    r"(?P<factor>(?:(?!\\det)[^=+,&])*?)(?P<opening>\\\{|[\[(]?)\s*\\begin\{\s*(?P<name>(?:[pbB]|[pb]?small)?matrix|array|cases)\s*\}"
    r"(?:\{[lcr| ]*\})?(?P<body>(?:(?!\\(?:begin|end)).)*)\\end\{\s*(?P=name)\s*\}\s*(?:\\\}|[\])|.]?)\s*"
    r"(?P<turned>\^\s*\{?\s*(?:T|\\top|\\intercal|\\(?:text|mathsf)\{T\})\s*\}?)?\s*"
)
_ROW_END = re.compile(r"\\(?:cr|newline|tabularnewline)(?![A-Za-z])")
#: Words and signs around a condition.
_CONDITION = re.compile(r"^(?:\\text\s*\{)?\s*(?:if|when|for)\b\s*\}?\s*|\s*[,.;]\s*$")
_NO_CELL = re.compile(r"\\hline(?![A-Za-z])|^\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]")


_Table = tuple[str, str, list[list[str]]]


def _table(text: str) -> _Table | None:
    """Kind, factor and rows of a text that is one matrix; None for determinants, which are numbers, and all else."""
    found = _TABLE.fullmatch(text)
    if found is None or found["factor"].rstrip().endswith("|"):
        return None
    lines = [_NO_CELL.sub("", line) for line in top_level(_ROW_END.sub(r"\\\\", found["body"]), r"\\")]
    rows = [[cell.strip() for cell in top_level(line, "&")] for line in lines if line.strip()]
    if found["turned"] and len({len(row) for row in rows}) == 1:
        rows = [list(column) for column in zip(*rows, strict=True)]
    kind = "cases" if found["name"] == "cases" or found["opening"] == r"\{" else "matrix"
    if kind == "cases":
        rows = [[_CONDITION.sub("", cell) for cell in row] for row in rows]
    return kind, re.sub(r"\\(?:cdot|times)\s*$", "", found["factor"].strip()), rows


def _column(point: str) -> _Table | None:
    """A point as the column that it is written as, too."""
    brackets, *coordinates = _coordinates(point) or [""]
    return ("matrix", "", [[each] for each in coordinates]) if brackets == "()" and "\\infty" not in point else None


def _same_table(ours: _Table | None, theirs: _Table | None) -> bool:
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return False
    if [len(row) for row in ours[2]] != [len(row) for row in theirs[2]]:
        return False
    factors = bool(ours[1] or theirs[1])
    cells = [[f"{each[1]}({cell})" if factors else cell for row in each[2] for cell in row] for each in (ours, theirs)]
    return all(_agree(cell, other, computed=factors) for cell, other in zip(*cells, strict=True))


# Equations ------------------------------------------------------------------------------------------------------------

_QUANTITIES = "area volume perimeter answer total sum length probability distance time speed cost"
_INDEX = r"(?:\s*_\s*(?:\w|\{\s*(?:\w+|\\text\{\s*\w+\s*\}|\\m(?:ax|in))\s*\}))?"
_UNKNOWN = rf"(?:(?!(?-i:e)(?![A-Za-z]))[A-Za-z]|{GREEK_LETTER}){_INDEX}"
_NAME = re.compile(
    rf"\s*(?:(?P<function>{_UNKNOWN})\s*\(\s*(?P<arguments>{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*)\s*\)"
    rf"|\\(?:vec|mathbf|hat|bar|overline|overrightarrow)\s*\{{\s*[A-Za-z]{{1,2}}\s*\}}|\((?P<point>\s*{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*\s*)\)|(?P<unknown>{_UNKNOWN})"
    rf"|\\text\{{\s*(?:{'|'.join(_QUANTITIES.split())})\s*\}})\s*",
    re.IGNORECASE,
)
#: What names one number, where no other unknown has to be found: `|z|`, `f(2)`, `P(A)`, `AB`, `\angle ABC`, `\sin A`.
_FIGURE = r"(?:\\(?:triangle|angle)\s*)*[A-Z]{0,9}(?:\^\{?2\}?)?"
_NAMED = "overline|widehat|bar|vec|hat|overrightarrow|mathbf|mathbb|gcd|det|deg|dim|Pr|arg|operatorname"
_QUANTITY = re.compile(
    rf"\s*(?:\|[^|]+\||\\(?:lvert|lVert|\|).+\\(?:rvert|rVert|\|)|[PEn]\s*[(\[].+[)\]]|(?:m\s*)?\\(?:angle|triangle)\s*(?:{_FIGURE}|\w)"
    rf"|\\(?:{_NAMED})\s*(?:{GROUP}|\w|[(\[][^=()\[\]]*[)\]]|\s)*|[A-Z]{{2}}{_FIGURE}|\[\s*{_FIGURE}\s*\]"
    rf"|\\text\{{[A-Za-z ]+\}}\s*{_FIGURE}|\\frac\s*\{{\s*d[^}}]*\}}\s*\{{\s*d[^}}]*\}}"
    rf"|\\(?:sin|cos|tan|cot|sec|csc)(?:\^\{{?2\}}?)?\s*\(?\s*(?:[-A-Z\d+\s]|\\angle(?![A-Za-z])|{GREEK_LETTER})+\s*\)?"
    rf"|\\vec\s*{GROUP}\s*\\cdot\s*\\vec\s*{GROUP}|S_\{{\\triangle\s*[A-Z]+\}})\s*"
)
#: A function of numbers, `f(2)`, `f'(g(2))` or `(f \circ g)(2)`, without its name and brackets.
_FUNCTION = re.compile(r"[A-Za-z]'*(?:\^\{-1\})?\s*\(|\((?:\s*[a-z]\s*\\circ)+\s*[a-z]\s*\)\s*\(")
_CONSTANT = re.compile(r"(?<=\+)\s*(?:[CcKk]|\\text\s*\{\s*(?:[Cc]onst(?:ant|\.)?|[Cc])\s*\})\s*$")
#: Where a function or a number of periods is defined; the argument of a function of one unknown.
_FOR_ALL = re.compile(
    r"\s*,?\s*\\text\{\s*,?\s*for\s+(?:all|every|any|each)(?:\s+[a-z]+){0,2}\s*\}\s*[A-Za-z]"
    r"(?:\s*\\in\s*\\mathbb\s*\{?\s*[A-Z]\s*\}?(?:\s*[_^]\s*(?:\{[^{}]*\}|[+*]))?)?\s*$"
)
_INTEGER = re.compile(r"\s*(?:,\s*\(?|\()\s*[kmn]\s*\\in\s*(?:\\mathbb\s*\{?\s*[ZN]\s*\}?|Z|N)\s*\)?\s*$")
_OF_ONE = re.compile(r"\s*([A-Za-z])\s*\(\s*([a-z])\s*\)\s*=")
_NUMBERED = re.compile(r"([A-Za-z])_\{(\d)\}\s*=[^=]+")
_SYMBOL = re.compile(r"\\[A-Za-z]+|[A-Za-z]")


def _is_ordered(text: str) -> bool:
    """Whether there is an inequality outside brackets."""
    return len(top_level(text, "<", ">", r"\le", r"\ge")) > 1


def _is_equation(text: str) -> bool:
    """Whether there is an equals sign outside brackets; the range of a sum makes no equation."""
    return len(top_level(text, "=")) > 1


def _same_sides(given: str, expected: str) -> bool:
    """Whether equations without unknowns have the same numbers and, side by side, the same values."""
    ours, theirs = top_level(given, "="), top_level(expected, "=")
    numbers = [sorted(re.findall(r"\d+(?:\.\d+)?", text)) for text in (given, expected)]
    agreed = (
        all(_agree(*pair, computed=True) for pair in zip(sides, theirs, strict=False)) for sides in (ours, ours[::-1])
    )
    return numbers[0] == numbers[1] and len(ours) == len(theirs) and any(agreed)


def _values_of(given: str, expected: str) -> list[str]:
    """The sides of an answer that must all equal the reference answer; none for an equation that names no value.

    One side may be a bare unknown that no other side has: `2x=10`, `x+1=10` and `x=2x+3` name no value.
    """
    if _is_ordered(given):
        return [given]
    if "," in given and (named := _named(given)):
        given = named[1]
    sides = [side for side in top_level(given, "=") if side.strip()]
    if len(sides) < 2:
        return [given]
    if not letters(expected) and _names_number(sides[0]):
        return [side for side in sides[1:-1] if not _names_number(side)] + sides[-1:]
    names = [name for side in sides[:-1] if (name := _NAME.fullmatch(side)) is not None]
    values = [*(side for side in sides[:-1] if not _NAME.fullmatch(side)), sides[-1]]
    symbols = {symbol for value in values for symbol in _SYMBOL.findall(value)}
    own = {name["unknown"] or name["function"] for name in names}
    return [] if len(names) > 1 or own & symbols else values


def _names_number(side: str) -> bool:
    """Whether a side names a number instead of asking for one, as ``a+b`` does: no equation gives two unknowns."""
    inside, functions = _FUNCTION.subn("", side)
    if _QUANTITY.fullmatch(side) or (functions and re.fullmatch(r"[-+\d.,/\s)]+", inside)):
        return True
    several = len(set(re.findall(rf"(?<![A-Za-z\\]){_UNKNOWN}", side))) > 1
    commands = set(re.findall(r"\\[A-Za-z]+", re.sub(GREEK_LETTER, "", side))) - {r"\frac", r"\cdot"}
    return several and not functions and not commands and "," not in side


def _named(expected: str) -> tuple[str, str] | None:
    r"""The one bare unknown of equations and the value that they give it; None where they give none.

    `y=2x+3` names `2x+3`, `x=4,x=5` the list `4,5`, and a function of its own argument, `f(x)=x^2`, has a value. But
    `x+y=1` and `f(x)=0` are equations to be solved, and `x=5,y=6` has two unknowns.
    """
    first, *others = _listed(expected)
    named = _named_value(first)
    if named is None or not any(map(_is_equation, others)):
        return named and (named[0], ",".join([named[1], *others]))
    pairs = [named, *(pair for pair in map(_named_value, others) if pair and pair[0] == named[0])]
    return (named[0], ",".join(value for _, value in pairs)) if len(pairs) == 1 + len(others) else None


def _named_value(equation: str) -> tuple[str, str] | None:
    """Name and value of an equation whose first side is a name that no other side has."""
    first, *sides = top_level(equation, "=")
    name = _NAME.fullmatch(first)
    if name is None or not sides or not all(side.strip() for side in sides):
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
