r"""Single values: what is refused before math-verify reads them, their units, and math-verify itself."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nemo_uecr.verifier.spelling import (
    DIGITS,
    FOREIGN,
    FOREIGN_MODIFIER,
    GREEK_LETTER,
    GROUP,
    MODIFIERS,
    TEXT,
    TOKEN,
    closes_at_end,
    is_relation,
    letters,
    nested,
    plain_number,
    squeezed,
)

# What is refused before math-verify reads it --------------------------------------------------------------------------

#: What math-verify reads as something people do not mean: `7 \equiv 8` as 7, `2^10` as 20.
_MISREAD = re.compile(r"\\(?:equiv|cong|sim|doteq)|[≡→⇒]|\\\\|\^\s*\d\d")
#: A mixed number, the one form that looks like a product and that people mean as a sum.
_MIXED = re.compile(r"(?<!frac)(?<![\d.}])(\d+)(?:\s|\\[,!])*\\frac\{\s*(\d+)\s*\}\{\s*(\d+)\s*\}")
_WORD = re.compile(rf"[A-Za-z\u00b5{FOREIGN}]+")
#: Marks that math-verify drops or divides at: rounding, primes, the colons of times and ratios, halves of the day.
_LITERAL = re.compile(
    r"\\approx|['\u2032\u2033\u2019\"]|\\prime(?![A-Za-z])|(?<!\\):|(?<![A-Za-z\\])[ap]\.?\s*m\.?(?![A-Za-z])"
    r"|(?:[A-Z]|\([A-Z]{2,}\))\s*\^\s*(?:T|\\top|\\intercal)(?![A-Za-z])"  # transposes
    r"|[A-Za-z]\s*\^\s*\{\s*\(\s*\d\s*\)\s*\}|(?<![A-Za-z\\])E\s*(?:\[|\(\s*[A-Z]\s*[\^)])"  # derivatives, expectations
    r"|^\s*(?:\d{4}([-/])\d\d?\1\d\d?|\d\d?([-/])\d\d?\2(?:\d\d)?\d\d)\s*$|\\ldots"  # dates, and what is left out
)
#: Names of points and of things with a number: read as LaTeX they are products, and `CBA` would be `ABC`.
_NAME_OF_POINTS = re.compile(r"[A-Z]{2,}|(?<![A-Za-z\\\d.])[A-Za-z]+\d+")
_FRACTION = re.compile(rf"\\(?:frac|[dt]?binom)\s*({GROUP}|\d)\s*({GROUP}|\d)")
_ROOT = re.compile(rf"\\sqrt\s*(?:\[[^\]]*\]\s*)?({GROUP}|\d)")
#: A function with its base or power, which a number may follow, as in ``\log_{2} 8``.
_INDEXED = re.compile(rf"\\(?:log|ln|lg|sin|cos|tan|cot|sec|csc|sum|prod|int|lim)(?:\s*[_^]\s*(?:{GROUP}|\\?\w))+")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[^{}]*\}(?:\{[lcr| ]*\})?")
#: Of unknowns sympy takes 1.
_DIVISORS = re.compile(r"\\(?:gcd|lcm)(?![A-Za-z])")
#: A letter by itself, and brackets that group nothing: they are a floor or a fractional part.
_LETTER = re.compile(rf"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|{GREEK_LETTER}")
_PLAIN = r"(?:[^-+,\[\]{}|=<>]|\{[^{}]*\})*"
_POINTLESS = re.compile(
    rf"(?:^|(?<=[-+=(]))\s*(?:\[(?!\s*[A-J]\s*\])(?=[^\]]*[A-Za-z]){_PLAIN}\]|\\\{{(?=[^}}]*[A-Za-z]){_PLAIN}\\\}})\s*(?=$|[-+=)])"
)
#: Two values without an operator; ``\x02`` ends a fraction, a root or a word.
_SIDE_BY_SIDE = re.compile(r"\d\.?[\s{}]+\.?\d|[)\]}\x02][\s{}]*\.?\d")
#: Computations that no answer leaves to be done, and those that a number leaves to nobody.
OPERATION = re.compile(
    r"\\(?:sum|prod|i*nt|oint|lim)(?![A-Za-z])|\\frac\s*\{\s*(?:d|\\partial)\s*\}\s*\{\s*(?:d|\\partial)"
)
_NUMERIC_OPERATION = re.compile(
    r"!|\\(?:[dt]?binom|choose|gcd|lcm|max|min|[bp]?mod|lfloor|lceil|det)(?![A-Za-z])|matrix"
)
_UNSIGNED = rf"\(?(?:{DIGITS})(?:\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{{[+-]?\d+\}}|\d(?!\d)))?\)?"
_NUMERAL = re.compile(rf"[+-]?\s*(?:{_UNSIGNED}|10\s*\^\s*(?:\{{[+-]?\d+\}}|\d(?!\d)))\s*(?:\\%)?")
_QUOTIENT = re.compile(
    rf"[+-]?\s*(?:(?:\d+\s*)?\\frac\{{\s*[+-]?{_UNSIGNED}\s*\}}\{{\s*[+-]?{_UNSIGNED}\s*\}}"
    rf"|{_UNSIGNED}\s*/\s*{_UNSIGNED})\s*(?:\\%)?"
)
#: Brackets in brackets, powers in powers and signs beyond a reference's that no answer has and that take seconds.
_DEEPEST, _LONGER, _TOWER = 40, 300, re.compile(r"(?:\^\s*(?:\{[^{}]*|\(|\d+)){2}\^")


def too_large(given: str, expected: str) -> bool:
    """Whether the answer is a tower of powers, brackets in brackets or a row of signs that its reference is not."""
    tower = _TOWER.search(given) is not None and _TOWER.search(expected) is None
    tokens = list(nested(given))
    deepest = max((depth for _, depth in tokens), default=0)
    signs = sum(not token.isdigit() for token, _ in tokens)
    return tower or deepest > _DEEPEST or signs > _LONGER + 4 * len(list(nested(expected)))


def prose(text: str) -> bool:
    """Whether three words in a row, outside of text commands, are no units: mathematics would read them as products."""
    runs = re.findall(r"(?:(?<![A-Za-z\\])[A-Za-z]{2,}(?:\s+|$)){3,}", TEXT.sub(" . ", text))
    return any(sum(word.lower() not in _UNIT_WORDS for word in _WORD.findall(run)) > 2 for run in runs)


def same_value(given: str, expected: str, *, computed: bool) -> bool:
    """Whether two single values are the same; ``computed`` lets an unevaluated computation be a number."""
    if is_relation(given) != is_relation(expected):
        return False
    given, expected = _with_units(given, expected), _with_units(expected, given)
    if _other_structure(given, expected) or _other_unit(given, expected):
        return False
    given, expected = _without_units(given), _without_units(expected)
    numbers = _number(given), _number(expected)
    if None not in numbers and (numbers[0] == numbers[1] or "%" not in given + expected):
        return numbers[0] == numbers[1]
    if not computed and _unevaluated(given, expected):
        return False
    return _same(given, expected)


def _unevaluated(given: str, expected: str) -> bool:
    """Whether the answer leaves a computation to be done that its reference does not."""
    left = [{found[0] for found in OPERATION.finditer(text)} for text in (given, expected)]
    if left[0] - left[1]:
        return True
    if not letters(expected) and _NUMERIC_OPERATION.search(given) and not _NUMERIC_OPERATION.search(expected):
        return True
    bare, number = _unbracketed(given), _number(expected)
    if number is None or _NUMERAL.fullmatch(bare):
        return False
    irrational = re.search(r"\\(?:pi|sqrt|ln|log)(?![A-Za-z])|(?<![A-Za-z])e(?![A-Za-z])", bare)
    return number[2] >= 0 or not (_QUOTIENT.fullmatch(bare) or irrational)  # 7/2 is 3.5, but 14/2 is left to be done


def _number(text: str) -> tuple[str, str, int] | None:
    """The plain number that a text is in brackets or with a percent sign: 12.5 is right for 12.5 %."""
    return plain_number(squeezed(re.sub(r"\\%$", "", _unbracketed(text))))


def _unbracketed(text: str) -> str:
    text = text.strip()
    while len(text) > 2 and text[0] in "([{" and closes_at_end(text):
        text = text[1:-1].strip()
    return text


def _other_structure(answer: str, reference: str) -> bool:
    """Whether the answer has another structure than its reference."""
    names = [_NAME_OF_POINTS.findall(TEXT.sub(r"\1", text)) for text in (answer, reference)]
    names = [sorted(name for name in found if name.lower() not in _UNIT_NAMES) for found in names]
    return (
        _strange_words(answer, reference)
        or names[0] != names[1]
        or _other_case(answer, reference)
        or (_DIVISORS.search(answer + reference) is not None and bool(letters(answer + reference)))
        or len(_POINTLESS.findall(answer)) != len(_POINTLESS.findall(reference))
        or any(test(answer) and not test(reference) for test in (_MISREAD.search, _side_by_side))
        or any(map(_LITERAL.search, (answer, reference)))  # only the same text is the same
        or (r"\\" in reference and r"\\" not in answer and "vmatrix" not in reference)  # a derivation, no value
    )


def _other_case(answer: str, reference: str) -> bool:
    """Whether a letter of one is written large where the other has it small alone."""
    ours, theirs = (set(_LETTER.findall(TEXT.sub(" ", text))) for text in (answer, reference))
    turned = {re.sub("[A-Za-z]", lambda first: first[0].swapcase(), letter, count=1) for letter in ours - theirs}
    return bool(turned & (theirs - ours))


def _strange_words(answer: str, reference: str) -> bool:
    """Whether the answer has words that are neither units nor in the reference, or signs hidden in a text command."""
    contents = [(text.strip(), _WORD.findall(text)) for text in TEXT.findall(answer)]
    if any((text and not words) or re.search(r"\\[A-Za-z]", text) for text, words in contents):
        return True
    known = {word.lower() for word in _WORD.findall(reference)} | _UNIT_WORDS
    others = [word for _, words in contents for word in words if word.lower() not in known]
    numbers = any(re.search(r"\d", text) for text, _ in contents)
    return bool(others) and (numbers or not _counts(_without_units(answer), others))


def _counts(number: str, words: Sequence[str]) -> bool:
    """Whether words, at most three, are what a number counts: `36 red apples`."""
    number = _unbracketed(number)
    names = all(_COUNTED.fullmatch(word) and MODIFIERS.isdisjoint(_singulars(word)) for word in words)
    return names and len(words) <= 3 and bool(_NUMERAL.fullmatch(number) or _QUOTIENT.fullmatch(number))


#: A word that may name what a number counts.
_COUNTED = re.compile(rf"[A-Za-z][a-z]{{2,}}|(?=.*[{FOREIGN}])(?!.*(?:{FOREIGN_MODIFIER})).*")


def _side_by_side(text: str) -> bool:
    r"""Whether a number follows another value without an operator; math-verify adds them: ``203 1`` would be 204."""
    if any(int(top) >= int(bottom) for _, top, bottom in _MIXED.findall(text)):
        return True  # a whole number before an improper fraction
    plain = _INDEXED.sub(r"\\log ", TEXT.sub("\x02", _ENVIRONMENT.sub("&", text)))
    for _ in range(4):  # roots and fractions, inner ones too, as marks around their arguments
        plain = _ROOT.sub(lambda found: f"\x01{found[1][1:-1] or found[1]}\x02", plain)
        plain = _FRACTION.sub(lambda m: f"\x01{m[1][1:-1] or m[1]}\x01{m[2][1:-1] or m[2]}\x02", plain)
    return _SIDE_BY_SIDE.search(re.sub(r"\\[,!]", " ", plain)) is not None


# Units and number bases -----------------------------------------------------------------------------------------------

#: Every spelling of a unit has the first one's name.
_SPELLINGS = (
    "mm millimeter millimetre 毫米", "cm centimeter centimetre 厘米", "m meter metre 米", "km kilometer kilometre 公里",
    "in inch inche", "ft foot feet", "yd yard", "mi mile", "mg milligram 毫克", "g gram 克", "kg kilogram 公斤",
    "lb pound", "oz ounce", "s sec second 秒", "min minute 分钟", "h hr hour 小时", "d day 天", "week wk 周", "month",
    "yr year 年",
    "ml milliliter millilitre 毫升", "l liter litre 升", "mph", "gallon gal", "quart", "pint", "acre", "calorie",
    "degree deg 度", "radian rad", "celsiu c", "fahrenheit f", "cent", "dollar usd", "euro eur", "sterling", "yen",
    "rupee", "percent", "hz", "n", "j", "w", "v",
)  # fmt: skip
_UNIT_NAMES = {spelling: names.split()[0] for names in _SPELLINGS for spelling in names.split()}
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "平方": 2, "立方": 3}
_UNIT_WORDS = frozenset(("per", "of")) | frozenset(
    word + ending for word in (*_UNIT_NAMES, "unit", "way", "square", "sq", "cubic") for ending in ("", "s", "es")
)
_PLURAL = re.compile(r"[A-Za-z][a-z]{2,}s|people|(?:wo)?men|children")
_UNIT = re.compile(r"(?:(?P<slash>/)\s*)?\\text\{(?P<text>[^{}]*)\}(?:\s*\^\s*\{?\s*(?P<power>[+-]?\d+)\s*\}?)?")
#: Words after a number, perhaps with powers and slashes: `5 square feet`, `5 km/h`.
_BARE_UNIT = re.compile(
    r"(?<=[\d})])(?:\s|\\,)*([A-Za-z]+(?:(?:\s?\^\s?\{?[23]\}?)?(?:\s?/\s?|\s+)[A-Za-z]+)*)(?=(?:\s?\^\s?\{?\d\}?)?\s*$)"
)
#: What a unit is written as at the end of a value.
_UNIT_TAIL = re.compile(rf"(?:\\,)*(?:\s*{_UNIT.pattern})+\s*$|\s*\^\{{\\circ\}}\s*$")
_UNIT_PIECE = re.compile(rf"平方|立方|(?:(?!平方|立方)[A-Za-zµ{FOREIGN}])+|/")
#: Units that are written as signs.
_SIGNS = {r"^{\circ}": r"\text{ degree }", r"\$": r"\text{ dollar }", r"\%": r"\text{ percent }"}
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
    known = {*_UNIT_NAMES.values(), *(ours.keys() & theirs.keys() & {"unit"})}
    measures = [{name: power for name, power in side.items() if name in known} for side in (ours, theirs)]
    counted = [side.keys() - known - {"of", "unit"} for side in (ours, theirs)]
    if not all(measures):
        return not ours.keys() & theirs.keys()
    multiplied = bool(measures[0].keys() - {"percent"}) and bool(counted[0] - counted[1])  # 5 nautical miles
    return measures[0] != measures[1] or multiplied or (all(counted) and not counted[0] & counted[1])


def _units(text: str) -> dict[str, int]:
    """Every unit with its power, negative after a slash or "per"."""
    for sign, unit in _SIGNS.items():
        text = text.replace(sign, unit)
    units: Counter[str] = Counter()
    below = False
    for match in _UNIT.finditer(text):
        below, waiting, last = below or match["slash"] is not None, 1, ""
        for piece in _UNIT_PIECE.findall(match["text"].lower()):
            if piece in ("per", "/"):
                below = True
            elif piece in ("squared", "cubed"):
                units[last] *= _POWERS[piece]
            elif piece in _POWERS:
                waiting = _POWERS[piece]
            else:
                last = _unit_name(piece)
                units[last] += -waiting if below else waiting
                waiting = 1
        if last and match["power"]:
            units[last] *= int(match["power"])
    return {name: power for name, power in units.items() if power}


def _singulars(word: str) -> tuple[str, str, str]:
    """A word in small letters, and what it may be the plural of."""
    word = word.lower()
    return word, word.removesuffix("s"), word.removesuffix("es")


def _unit_name(word: str) -> str:
    """A unit's or counted thing's one name, without its plural."""
    names = _singulars(word)
    return next((_UNIT_NAMES[name] for name in names if name in _UNIT_NAMES), names[1])


def _with_units(text: str, other: str) -> str:
    r"""The value with its unit in a text command, as in ``5\text{ cm}``.

    Known words of two letters and more are units; a letter is an unknown, unless the other text has it as a unit.
    """
    bare = _BARE_UNIT.search(text)
    if bare is None:
        return text
    words = re.findall("[A-Za-z]+", bare[1])
    others = [word for word in words if word.lower() not in _UNIT_WORDS]
    known = (len(words) > 1 or len(words[0]) > 1) and (
        not others or (any(map(_PLURAL.fullmatch, others)) and _counts(text[: bare.start()], others))
    )
    if not known and [_unit_name(words[0])] != [_unit_name(word.strip()) for word in TEXT.findall(other)]:
        return text
    unit = re.sub(r"[A-Za-z]+(?:\s+[A-Za-z]+)*", lambda match: rf"\text{{{match[0]}}}", bare[1])
    return text[: bare.start()] + unit + text[bare.end() :]


def _without_units(text: str) -> str:
    """The value alone; a dollar sign and a currency before it are units too."""
    bare = re.sub(r"^\s*(-?)\s*\\?\$", r"\1", text)
    if bare.endswith(r"^{\circ}") and _FUNCTION.search(bare):
        return bare
    bare = _UNIT_TAIL.sub("", _UNIT_TAIL.sub("", bare)).strip()
    return bare or text


# math-verify ----------------------------------------------------------------------------------------------------------

#: Values of the unknowns where two expressions are compared before sympy simplifies anything.
_POINT = (1.3717, 0.6411, 1.7233, 0.8537, 1.1939, 0.4793, 1.5491)
#: Relative difference of two values that are not the same; where a decimal is rounded, an absolute and a relative one.
_APART, _ROUNDED, _ROUNDED_SHARE = 1e-9, 2e-6, 1e-4
#: Whole numbers of more digits take sympy minutes; none is an answer, but for the very text of its reference.
_HUGE = 10**5000


def _same(given: str, expected: str) -> bool:
    import math_verify

    ours, theirs = parsed(given), parsed(expected)
    if ours is None or theirs is None or _apart(ours, theirs) or _other_relation(ours, theirs):
        return False
    return bool(math_verify.verify([theirs], [ours], timeout_seconds=None, raise_on_error=True))


def _apart(ours: Any, theirs: Any) -> bool:
    """Whether two expressions differ at a point: seen at once where simplifying takes seconds, and however small."""
    import sympy

    slow = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)
    for value in (ours, theirs):
        if not isinstance(value, sympy.Expr) or value.is_Symbol or value.is_Matrix or value.has(*slow):
            return False
    unknowns = sorted(ours.free_symbols | theirs.free_symbols, key=str)
    values = _at(ours, unknowns, 0), _at(theirs, unknowns, 0)
    if not all(value is not None and value.is_finite for value in values):
        return False
    rounded = ours.has(sympy.Float) or theirs.has(sympy.Float)
    size = max(abs(value) for value in values)
    if size > _HUGE:
        return True
    if abs(values[0] - values[1]) > max(_APART * size, min(_ROUNDED, _ROUNDED_SHARE * size) if rounded else 0):
        return True
    exact = None if rounded else (ours - theirs).doit()  # 1 - 2^-100 is not 1 - 2^-101
    return exact is not None and exact.is_Rational and exact != 0


def _at(value: Any, unknowns: Sequence[Any], turn: int) -> Any:
    """The number that an expression is at one of the points; None where it is none."""
    import sympy

    point = {each: sympy.Float(_POINT[(place + turn) % len(_POINT)]) for place, each in enumerate(unknowns)}
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
    elementary = (sympy.exp, sympy.log, sympy.functions.elementary.trigonometric.TrigonometricFunction)
    powers = [power.exp.free_symbols for side in sides for power in side.atoms(sympy.Pow)]
    if len(unknowns) == 1 and (any(powers) or any(side.has(*elementary) for side in sides)):
        return True  # sympy would take seconds, and seldom solve it
    try:
        return unequal[0] or sympy.solve(theirs, unknowns) in ([], sympy.true, sympy.false)
    except (NotImplementedError, ValueError):  # sympy cannot solve it, and math-verify compares the terms
        return False


_FUNCTIONS = r"\\(?:ln|lg|log|arc(?:sin|cos|tan)|sin|cos|tan|cot|sec|csc)(?![A-Za-z])"
_FUNCTION = re.compile(_FUNCTIONS)
_RAISED = rf"(?:\s*[_^]\s*(?:{GROUP}|\\?\w))*"
_ATOM = rf"(?:\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z])|\\pi(?![A-Za-z])|{GREEK_LETTER}){_RAISED}"
#: A function and its argument without brackets before an operator: latex2sympy would take in what comes after it.
_APPLIED = re.compile(
    rf"({_FUNCTIONS}{_RAISED})\s*((?:{_FUNCTIONS}{_RAISED}\([^()]*\)|\\frac\s*{GROUP}\s*{GROUP}|\\sqrt\s*{GROUP}|{_ATOM})"
    rf"(?:\s*{_ATOM})*)(?=\s*(?:\\cdot(?![A-Za-z])|\\times|[*/(]))"
)
_DEGREES = re.compile(rf"(\d+(?:\.\d+)?|(?<![A-Za-z\\])[A-Za-z]|{GREEK_LETTER}|\([^()]*\))\s*\^\{{\\circ\}}")
#: A derivative by name, which latex2sympy would take of a constant.
_DERIVATIVE = re.compile(
    r"\\frac\s*\{\s*(?:d|\\partial)\s*(?:\^\s*\{?\d\}?\s*)?\\?[A-Za-z]+(?:_\w|_\{\w+\})?\s*\}"
    r"\s*\{\s*(?:d|\\partial)\s*\\?[A-Za-z]+\s*(?:\^\s*\{?\d\}?\s*)?\}"
)


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> Any:
    r"""The sympy value of a whole box; None where it cannot be read.

    Like math-verify's `parse`, but for two things for which it has no setting: a value after another
    multiplies it (``3(7)`` is no mixed number 10), and letters keep their case.
    """
    from latex2sympy2_extended import NormalizationConfig, normalize_latex
    from math_verify.grader import should_treat_as_complex

    text = _MIXED.sub(r"(\1+\\frac{\2}{\3})", text)
    if _FUNCTION.search(text):
        text = _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", text)
        for _ in range(2):  # a function of a function
            text = _APPLIED.sub(r"\1(\2)", text)
    text = _DERIVATIVE.sub(lambda found: "D_{" + re.sub(r"[^A-Za-z0-9]|partial", "", found[0]) + "}", text)
    text = re.sub(r"(?<![A-Za-z\\])I(?![A-Za-z])", r"\\Upsilon ", text)  # no imaginary unit
    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="last")
    latex = normalize_latex(rf"\boxed{{{text}}}", config=spelling)
    try:
        # Of `3i` and `bi` math-verify does not see the imaginary unit.
        return _reader()(is_real="i" not in TOKEN.findall(text) and not should_treat_as_complex(latex)).parse(latex)
    except Exception as error:
        if type(error) is not Exception:
            raise
        return None


@functools.cache
def _reader() -> Any:
    """latex2sympy's reader, without its rule that adds a whole number to the rational after it."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

    class Reader(_Latex2Sympy):  # type: ignore[misc]
        def __init__(self, *, is_real: bool) -> None:
            super().__init__(is_real=is_real, config=ConversionConfig(lowercase_symbols=False))

        def convert_atom(self, atom: Any) -> Any:
            # The grammars for antlr 4.9.3, which hydra-core pins, and 4.11 lack it; percentages are asked for after it.
            if not hasattr(atom, "FUNC_GAMMA"):
                atom.FUNC_GAMMA = lambda: None
            return super().convert_atom(atom)

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
