r"""Units and number bases of an answer: ``5\text{ cm}`` is not ``5\text{ m}``, and ``2003_5`` is not ``2003_4``."""

from __future__ import annotations

import re

_UNIT = re.compile(r"\\(?:text|mbox|mathrm|textrm)\s*\{([^{}]*)\}\s*(?:\^\s*\{?\s*(\d)\s*\}?)?")
_BASE = re.compile(r"[\d)]\s*_\s*\{?\s*(\d+)\s*\}?")
_WORD = re.compile(r"[A-Za-zµ]+")
#: Every spelling of a unit has the first one's name.
_SPELLINGS = (
    "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre", "km kilometer kilometre",
    "in inch inche", "ft foot feet", "yd yard", "mi mile", "mg milligram", "g gram", "kg kilogram", "lb pound",
    "oz ounce", "s sec second", "min minute", "h hr hour", "d day", "week wk", "month", "yr year",
    "ml milliliter millilitre", "l liter litre", "mph",
    "degree deg", "radian rad", "cent", "dollar usd", "euro eur", "percent", "hz", "n", "j", "w", "v",
)  # fmt: skip
_NAMES = {spelling: names.split()[0] for names in _SPELLINGS for spelling in names.split()}
#: Words that name what was counted, and say nothing of the amount.
_COUNTED_WORDS = (
    "unit way people person student child children boy girl man men woman women ball coin card point side edge "
    "vertex vertices face triangle rectangle circle digit integer number value solution root pair set step "
    "turn round game match team player page book pen pencil apple orange egg cookie cake pizza slice cup "
    "bottle box bag car bus buse train mile trip ticket friend animal cat dog fish bird cow chicken sheep "
    "horse tree flower plant worker job question test class room house seat stamp toy bolt piece part "
    "marble penny pennies nickel dime quarter gallon quart pint liter ounce calorie acre term factor divisor "
    "multiple path outcome arrangement permutation combination function word letter color colour per "
)
_COUNTED = _COUNTED_WORDS.split()
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
    """Whether both answers have a unit and not the same; a unit that only one of them has does not count."""
    ours, theirs = _units(given), _units(expected)
    if not ours or not theirs:
        return False
    known = [{unit for unit in units if unit.rstrip("0123456789") in _NAMES.values()} for units in (ours, theirs)]
    return known[0] != known[1] if all(known) else not ours & theirs


def other_base(given: str, expected: str) -> bool:
    """Whether the given number stands in a base that the reference answer does not name."""
    ours = set(_BASE.findall(given))
    return bool(ours) and ours != set(_BASE.findall(expected))


def _units(text: str) -> set[str]:
    units = {name for sign, name in _SIGNS if sign.search(text)}
    bare = _BARE_UNIT.search(text)
    if bare is not None and bare[1].lower() in _NAMES:
        units.add(_NAMES[bare[1].lower()] + (bare[2] or ""))
    for match in _UNIT.finditer(text):
        words = [word.lower() for word in _WORD.findall(match[1])]
        power = match[2] or next((_POWERS[word] for word in words if word in _POWERS), "")
        for word in words:
            if word not in _POWERS:
                name = _NAMES.get(word) or _NAMES.get(word.removesuffix("s")) or word.removesuffix("s")
                units.add(name + power)
    return units
