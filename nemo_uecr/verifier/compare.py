r"""Whether two answers are the same: plain numbers at once, the rest by math-verify behind a layer of vetoes.

math-verify is lenient: it takes the last of several answers, adds numbers that stand side by side, and drops words,
units and brackets. A policy finds such leniency and exploits it. So an answer is refused before math-verify sees it
when it names several values, is built otherwise than its reference answer, or has another unit. A wrong answer that
is rewarded does more harm than a right one that is not: in doubt, the answer is wrong. docs/verifier.md has the rules.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from typing import Any

from nemo_uecr.verifier.extract import Verdict

#: A LaTeX command, an escaped character, or a character.
_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|.", re.DOTALL)
_TEXT = re.compile(r"\\(text|mbox|mathrm|textrm|textbf|mathbf|textit|mathit|operatorname)\s*\{([^{}]*)\}")


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
    ours, theirs = (_TEXT.sub(r"\2", text).strip("$ ") for text in (given, expected))
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


# Mathematics ----------------------------------------------------------------------------------------------------------

_ONE_LETTER = re.compile(r"\\(?:mathrm|mathbf|mathit|mathcal|operatorname)\s*\{\s*([A-Za-z])\s*\}")
_OR = re.compile(r"\\(?:lor|vee|land|wedge)(?![A-Za-z])|;|(?<![A-Za-z\\{])(?:or|and)(?![A-Za-z}])")
_OR_WORD = re.compile(r"\s*(?:,?\s*(?:or|and)|,)\s*", re.IGNORECASE)
_SPACE = re.compile(r"\\(?:quad|qquad)(?![A-Za-z])|\\[ ;:]|(?<!\\)~|\s")
_EMPTY_SET = re.compile(r"\\varnothing(?![A-Za-z])|\\\{\s*\\\}|∅")
_MEMBER = re.compile(r"^\s*[A-Za-z]\s*(?:\\in(?![A-Za-z])|∈)\s*(?=[\[(\\])")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\overline\{(\d+)\}")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+\.?\d*|\.\d+)[eE]([+-]?)0*(\d{1,3})(?![\w.])")
#: A mixed number, the one form that looks like a product and that people mean as a sum.
_MIXED = re.compile(
    r"(?<!frac)(?<![\d.}])(\d+)(?:\s|\\[,!])*\\[dtc]?frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))"
)
_SLASHED = re.compile(r"(?<![\w.}^)\\])(\d+)(?:\s|\\,)+(\d+)\s*/\s*(\d+)(?![\w.])")
_THOUSANDS = re.compile(r"(?<![\d.,(\[{])[1-9]\d{0,2}(?:(?:\{,\}|,\\!|\\,|,)\d{3})+(?![\d,])")


def compare(given: str, expected: str) -> Verdict:
    """Whether two answers are the same number, expression, set, interval or matrix; without a time limit."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    try:
        same = _equivalent(_without_point(given), _without_point(expected))
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RuntimeError, MemoryError):
        return Verdict.ERROR
    return Verdict.CORRECT if same else Verdict.WRONG


def _equivalent(given: str, expected: str) -> bool:
    given, expected = _normal(given), _normal(expected)
    if given.split() == expected.split():
        return True
    if "=" not in expected and "," in given:
        given = _value_without_names(given) or given
    given, expected = (_MEMBER.sub("", text) for text in (given, expected))
    if _other_structure(given, expected) or _other_unit(given, expected):
        return False
    if _is_equation(expected) and not _is_equation(given):
        value = _value_without_names(expected)
        return value is not None and _same(given, value)
    values = _values_of(given, expected)
    return values is not None and all(_same(value, expected) for value in values)


def _normal(text: str) -> str:
    """The text in the spelling that the vetoes and math-verify read; "or", "and" and semicolons are commas."""
    text = text.strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing):
            text = text[len(opening) : -len(closing)].strip()
            break
    text = _ONE_LETTER.sub(lambda match: match[1] if match[1] not in _UNIT_LETTERS else match[0], text)
    text = _EMPTY_SET.sub(r"\\emptyset ", text)
    text = _TEXT.sub(lambda match: ", " if _OR_WORD.fullmatch(match[2]) else match[0], text)
    text = re.sub(r",(?:\s*,)+", ",", _OR.sub(" , ", _SPACE.sub(" ", text)))
    text = _SLASHED.sub(r"\1\\frac{\2}{\3}", text)
    text = _SCIENTIFIC.sub(lambda match: rf"({match[1]}\times 10^{{{match[2].strip('+')}{match[3]}}})", text)
    return _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), _REPEATING.sub(_as_fraction, text))


def _as_fraction(match: re.Match[str]) -> str:
    r"""``0.1\overline{6}`` is (16 - 1) / 90."""
    whole, fixed, period = match.groups()
    top = int(whole + fixed + period) - int((whole + fixed) or "0")
    return rf"\frac{{{top}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


def _same(given: str, expected: str) -> bool:
    import math_verify

    values = _parsed(expected), _parsed(given)
    if None in values:
        return False
    return bool(math_verify.verify([values[0]], [values[1]], timeout_seconds=None, raise_on_error=True))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    r"""The sympy value of a whole box; None where it cannot be read.

    As math-verify's `parse` reads it, but for two things that it gives no setting for: a value behind another
    multiplies it (``3(7)`` is no mixed number 10), and letters keep their case.
    """
    from latex2sympy2_extended import NormalizationConfig, normalize_latex
    from math_verify.grader import should_treat_as_complex

    text = _MIXED.sub(lambda m: rf"({m[1]}+\frac{{{m[2] or m[3]}}}{{{m[4] or m[5]}}})", text)
    spelling = NormalizationConfig(units=True, malformed_operators=True, nits=True, boxed="last")
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


# Structure: brackets, members of lists, words, numbers side by side ---------------------------------------------------

_SIZED = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle)(?![A-Za-z])\s*")
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")
#: What math-verify reads as something people do not mean: `7 \approx 8` as 7, `2^10` as 20, `[-\infty` as half-open.
_MISREAD = re.compile(
    r"\\(?:approx|equiv|cong|sim|doteq)|[≈≡→⇒]|\\\\|\^\s*\d\d|\[\s*[-+]?\s*(?:\\infty|∞)|(?:\\infty|∞)\s*\]"
)
_WORD = re.compile(r"[A-Za-z\u00b5]+")
#: Marks that math-verify drops or divides at: primes, the colons of times and ratios, halves of the day.
_LITERAL = re.compile(r"['\u2032\u2033\u2019\"]|\\prime(?![A-Za-z])|(?<!\\):|(?<![A-Za-z\\])[ap]\.?\s*m\.?(?![A-Za-z])")
#: Names of points and of things with a number: read as LaTeX they are products, and `CBA` would be `ABC`.
_NAME_OF_POINTS = re.compile(r"[A-Z]{2,}|(?<![A-Za-z\\\d.])[A-Za-z]+\d+")
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_FRACTION = re.compile(rf"\\(?:[dtc]?frac|[dt]?binom)\s*({_GROUP}|\d)\s*({_GROUP}|\d)")
_ROOT = re.compile(rf"\\sqrt\s*(?:\[[^\]]*\]\s*)?({_GROUP}|\d)")
#: A function with its base or power, which a number may follow, as in ``\log_{2} 8``.
_INDEXED = re.compile(rf"\\(?:log|ln|lg|sin|cos|tan|cot|sec|csc|sum|prod|int|lim)(?:\s*[_^]\s*(?:{_GROUP}|\\?\w))+")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[^{}]*\}(?:\{[lcr| ]*\})?")
#: Two values without an operator; ``\x02`` ends a fraction, a root or a word.
_SIDE_BY_SIDE = re.compile(r"\d\.?[\s{}]+\.?\d|(?:[)\]}\x02]|\\circ(?![A-Za-z]))[\s{}]*\.?\d")


def _other_structure(answer: str, reference: str) -> bool:
    """Whether the answer is built otherwise than its reference answer."""
    names = [sorted(_NAME_OF_POINTS.findall(_TEXT.sub(r"\2", text))) for text in (answer, reference)]
    return (
        _kinds(answer) != _kinds(reference)
        or _strange_words(answer, reference)
        or names[0] != names[1]
        or any(test(answer) and not test(reference) for test in (_MISREAD.search, _side_by_side))
        or _LITERAL.search(answer + reference) is not None  # only the same text is the same
    )


def _top_level(text: str, separator: str) -> list[str]:
    """The text cut at a separator that stands within no bracket."""
    parts, depth = [""], 0
    for token in _TOKEN.findall(_SIZED.sub("", text)):
        depth += (token in _OPENING) - (token in _CLOSING)
        if token == separator and depth <= 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _members(text: str) -> list[str]:
    """The members of a list or of a set in braces."""
    text = _SIZED.sub("", text).strip()
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2]
    return [part.strip() for part in _top_level(text, ",")]


def _kinds(text: str) -> Counter[str]:
    r"""How many members have which outer brackets around several parts, ``\pm`` counted twice; and those repeated."""
    members = _members(text)
    counted = Counter("".join(part.split()) for part in members)
    kinds = Counter({part: number for part, number in counted.items() if number > 1})  # math-verify drops repetitions
    for part in members:
        value = part.rpartition("=")[2].strip()
        bracketed = len(value) > 2 and value[0] in "([" and value[-1] in ")]" and len(_top_level(value[1:-1], ",")) > 1
        kinds[value[0] + value[-1] if bracketed else ""] += 2 if r"\pm" in part else 1
    return kinds


def _strange_words(answer: str, reference: str) -> bool:
    """Whether the answer has words that are no unit and not in the reference, or signs that a text command hides."""
    known = {word.lower() for word in _WORD.findall(reference)} | _UNIT_WORDS
    contents = [content.strip() for _, content in _TEXT.findall(answer)]
    hidden = any(text and not _WORD.search(text) and not _NUMBER.fullmatch(text.strip(" $%")) for text in contents)
    return hidden or any(word.lower() not in known for text in contents for word in _WORD.findall(text))


def _side_by_side(text: str) -> bool:
    r"""Whether a number follows another value without an operator; math-verify adds them: ``203 1`` would be 204."""
    if any(int(a or b) >= int(c or d) for _, a, b, c, d in _MIXED.findall(text)):
        return True  # a whole number before an improper fraction
    plain = _INDEXED.sub(r"\\log ", _TEXT.sub("\x02", _SIZED.sub(" ", _ENVIRONMENT.sub("&", text))))
    for _ in range(4):  # roots and fractions, inner ones too, as marks around their arguments
        plain = _ROOT.sub(lambda found: f"\x01{found[1][1:-1] or found[1]}\x02", plain)
        plain = _FRACTION.sub(lambda m: f"\x01{m[1][1:-1] or m[1]}\x01{m[2][1:-1] or m[2]}\x02", plain)
    return _SIDE_BY_SIDE.search(re.sub(r"\\[,!]", " ", plain)) is not None


# Equations ------------------------------------------------------------------------------------------------------------

_GREEK = """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau
    phi varphi chi psi omega ell Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"""
_QUANTITIES = "area volume perimeter answer total sum length probability distance time speed cost"
_INDEX = r"(?:\s*_\s*(?:\w|\{\s*\w+\s*\}))?"
_UNKNOWN = rf"(?:(?!(?-i:e)(?![A-Za-z]))[A-Za-z]|\\(?:{'|'.join(_GREEK.split())})(?![A-Za-z])){_INDEX}"
_NAME = re.compile(
    rf"\s*(?:(?P<function>{_UNKNOWN})\s*\(\s*(?P<arguments>{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*)\s*\)"
    rf"|\((?P<point>\s*{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*\s*)\)|(?P<unknown>{_UNKNOWN})"
    rf"|\\(?:text|mathrm)\s*\{{\s*(?:{'|'.join(_QUANTITIES.split())})\s*\}})\s*",
    re.IGNORECASE,
)
_SYMBOL = re.compile(r"\\[A-Za-z]+|[A-Za-z]")


def _is_equation(text: str) -> bool:
    """Whether an equals sign stands within no bracket; the range of a sum makes no equation."""
    return len(_top_level(text, "=")) > 1


def _values_of(given: str, expected: str) -> list[str] | None:
    """The sides of an answer that must all equal the reference answer; None for an equation that names no value.

    One side may be a bare unknown that no other side has: `2x=10`, `x+1=10` and `x=2x+3` name no value.
    """
    sides = [side for side in _top_level(given, "=") if side.strip()]
    if _is_equation(expected) or len(sides) < 2:
        return [given]
    names = [_NAME.fullmatch(side) for side in sides[:-1]]
    values = [side for side, name in zip(sides, [*names, None], strict=True) if name is None]
    unknowns = {name["unknown"] or name["function"] for name in names if name is not None} - {None}
    symbols = {symbol for value in values for symbol in _SYMBOL.findall(value)}
    return None if len(names) - names.count(None) > 1 or unknowns & symbols else values


def _value_without_names(expected: str) -> str | None:
    r"""The value that equations give to one bare unknown; None where they give none.

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
    return ",".join([*(value for _, value in pairs), *(others if len(named) == 1 else [])])


def _named_value(equation: str) -> tuple[str, str] | None:
    """Name and value of an equation whose first side is a name that no other side has."""
    first, *sides = _top_level(equation, "=")
    name = _NAME.fullmatch(first)
    if name is None or not all(side.strip() for side in sides):
        return None
    symbols = {symbol for side in sides for symbol in _SYMBOL.findall(_TEXT.sub(" ", side))}
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
    "degree deg", "radian rad", "celsiu c", "fahrenheit f", "cent", "dollar usd", "euro eur", "percent", "hz", "n", "j",
    "w", "v",
)  # fmt: skip
_UNIT_NAMES = {spelling: names.split()[0] for names in _SPELLINGS for spelling in names.split()}
_UNIT_LETTERS = frozenset("mgshdlLNJWVCF")
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
_BARE_UNIT = re.compile(r"(?<=[\d})])\s*([A-Za-z]+)\s*(?:\^\s*\{?\s*(\d)\s*\}?)?\s*$")
_UNIT_PIECE = re.compile(r"[A-Za-zµ]+|[\u00b2\u00b3/]")
#: Units that are written as signs.
_SIGNS = (
    (re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\u00b0|\\degree"), r"\\text{ degree }"),
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
    for pattern, spelled in _SIGNS:
        text = pattern.sub(spelled, text)
    bare = _BARE_UNIT.search(text)
    if bare is not None and bare[1].lower() in _UNIT_NAMES:
        text = rf"{text[: bare.start()]}\text{{{bare[1]}}}" + (f"^{bare[2]}" if bare[2] else "")
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
                last = _UNIT_NAMES.get(piece) or _UNIT_NAMES.get(piece.removesuffix("s")) or piece.removesuffix("s")
                units[last] += -waiting if below else waiting
                waiting = 1
        if last and (match["digit"] or match["power"]):
            units[last] *= int(match["digit"] or match["power"])
    return {name: power for name, power in units.items() if power}
