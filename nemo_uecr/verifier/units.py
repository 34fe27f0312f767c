r"""Units and number bases of an answer: ``5\text{ cm}`` is not ``5\text{ m}``, and ``2003_5`` is not ``2003_4``."""

from __future__ import annotations

import re

_UNIT = re.compile(r"\\(?:text|mbox|mathrm|textrm)\s*\{([^{}]*)\}\s*(?:\^\s*(?:(\d)|\{\s*([+-]?\d+)\s*\}))?")
_BASE = re.compile(r"[\d)]\s*_\s*\{?\s*(\d+)\s*\}?")
_WORD_OR_STROKE = re.compile(r"[A-Za-zµ]+[\u00b2\u00b3]?|/")
_TEMPERATURE = re.compile(
    r"(?:\^\s*\{?\s*\\circ\s*\}?|\u00b0)[\s,\\!]*(?:\\(?:text|mathrm)\s*\{)?\s*([CF])(?![A-Za-z])\s*\}?\s*$"
)
#: Every spelling of a unit has the first one's name.
_SPELLINGS = (
    "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre", "km kilometer kilometre",
    "in inch inche", "ft foot feet", "yd yard", "mi mile", "mg milligram", "g gram", "kg kilogram", "lb pound",
    "oz ounce", "s sec second", "min minute", "h hr hour", "d day", "week wk", "month", "yr year",
    "ml milliliter millilitre", "l liter litre", "mph",
    "gallon gal", "quart", "pint", "acre", "calorie",
    "degree deg", "radian rad", "cent", "dollar usd", "euro eur", "percent", "hz", "n", "j", "w", "v",
)  # fmt: skip
_NAMES = {spelling: names.split()[0] for names in _SPELLINGS for spelling in names.split()}
_SCALES = {"C": "celsiu", "F": "fahrenheit"}  # as a word without its "s"
_MEASURES = set(_NAMES.values())
#: Words that name what was counted, and say nothing of the amount.
_COUNTED_WORDS = (
    "unit way people person student child children boy girl man men woman women ball coin card point side edge "
    "vertex vertices face triangle rectangle circle digit integer number value solution root pair set step "
    "turn round game match team player page book pen pencil apple orange egg cookie cake pizza slice cup "
    "bottle box bag car bus buse train trip ticket friend animal cat dog fish bird cow chicken sheep "
    "horse tree flower plant worker job question test class room house seat stamp toy bolt piece part "
    "marble penny pennies nickel dime quarter term factor divisor "
    "multiple path outcome arrangement permutation combination function word letter color colour per "
)
_COUNTED = _COUNTED_WORDS.split()
_FILLERS = {"per", "of", "unit"}
_POWERS = {"square": "2", "squared": "2", "sq": "2", "cubic": "3", "cubed": "3"}
#: Everything that may stand after a number without changing it, in the singular and with "s" or "es".
UNIT_WORDS = frozenset(
    word + ending
    for word in (*_NAMES, *_COUNTED, *(power for power in _POWERS if power not in ("squared", "cubed")))
    for ending in ("", "s", "es")
)
#: Units that are written as signs.
_SIGNS = (
    (re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\u00b0|\\degree"), "degree"),
    (re.compile(r"\\\$"), "dollar"),
    (re.compile(r"%"), "percent"),
)
#: A unit without a command for text, after the number.
_BARE_UNIT = re.compile(r"(?<=[\d})])\s*([A-Za-z]+)\s*(?:\^\s*\{?\s*(\d)\s*\}?)?\s*$")


def other_unit(given: str, expected: str) -> bool:
    """Whether both answers have a unit and not the same; a unit that only one of them has does not count.

    Measures must be the same with their powers, one by one; of the things counted one must be the same.
    """
    if _degree_of_radians(given, expected):
        return True
    ours, theirs = ({units for part in text.split(",") if (units := _units(part))} for text in (given, expected))
    if not ours or not theirs:
        return False
    sides = [{unit for units in side for unit in units} for side in (ours, theirs)]
    measured = [{tuple(filter(_measure, units)) for units in side} - {()} for side in (ours, theirs)]
    if not all(measured):
        return not sides[0] & sides[1]
    counted = [{unit for unit in side if not _measure(unit) and unit not in _FILLERS} for side in sides]
    return measured[0] != measured[1] or (all(counted) and not counted[0] & counted[1])


def _measure(unit: str) -> bool:
    return unit.partition("^")[0] in _MEASURES


def _degree_of_radians(given: str, expected: str) -> bool:
    r"""Whether a degree sign stands at a multiple of pi that has none in the reference answer."""
    degree = _SIGNS[0][0]
    return r"\pi" in given and r"\pi" in expected and bool(degree.search(given)) and not degree.search(expected)


def other_base(given: str, expected: str) -> bool:
    """Whether the given number stands in a base that the reference answer does not name."""
    ours = set(_BASE.findall(given))
    return bool(ours) and ours != set(_BASE.findall(expected))


def _units(text: str) -> tuple[str, ...]:
    """The units with their powers, sorted; what stands after a stroke or "per" has a negative one."""
    units = [name for sign, name in _SIGNS if sign.search(text)]
    if (temperature := _TEMPERATURE.search(text)) is not None:
        units = ["degree", _SCALES[temperature[1]]]
        text = text[: temperature.start()]
    bare = _BARE_UNIT.search(text)
    if bare is not None and bare[1].lower() in _NAMES:
        units.append(_NAMES[bare[1].lower()] + _power(bare[2] or ""))
    below, end = False, None
    for match in _UNIT.finditer(text):
        below = below or (end is not None and "/" in text[end : match.start()])
        words = _WORD_OR_STROKE.findall(re.sub(r"\bper\s+cent\b", "percent", match[1].lower()))
        units += _named(words, match[2] or match[3] or "", below)
        below, end = below or "per" in words or "/" in words, match.end()
    return tuple(sorted(units))


def _named(words: list[str], last_power: str, below: bool) -> list[str]:
    """The units of one text; a power behind it belongs to its last word."""
    units: list[str] = []
    waiting = ""
    for position, word in enumerate(words):
        if word in ("per", "/"):
            below = True
        elif word == "squared" or word == "cubed":
            units[-1:] = [unit.partition("^")[0] + _power("-" * below + _POWERS[word]) for unit in units[-1:]]
        elif word in _POWERS:
            waiting = _POWERS[word]
        else:
            raised = word.rstrip("\u00b2\u00b3")
            power = waiting or {"\u00b2": "2", "\u00b3": "3"}.get(word[len(raised) :], "")
            power = last_power or power if position == len(words) - 1 else power
            name = _NAMES.get(raised) or _NAMES.get(raised.removesuffix("s")) or raised.removesuffix("s")
            units.append(name + _power("-" * below + (power or "1")))
            waiting = ""
    return units


def _power(written: str) -> str:
    """A power behind the name of its unit; the first is not written."""
    number = int(written.replace("--", "") or 1)
    return "" if number == 1 else f"^{number}"
