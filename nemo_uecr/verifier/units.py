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
    "degree deg", "radian rad", "cent", "dollar", "percent", "hz", "n", "j", "w", "v",
)  # fmt: skip
_NAMES = {spelling: names.split()[0] for names in _SPELLINGS for spelling in names.split()}
_POWERS = {"square": "2", "squared": "2", "sq": "2", "cubic": "3", "cubed": "3"}


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
    units = set()
    for match in _UNIT.finditer(text):
        words = [word.lower() for word in _WORD.findall(match[1])]
        power = match[2] or next((_POWERS[word] for word in words if word in _POWERS), "")
        for word in words:
            if word not in _POWERS:
                name = _NAMES.get(word) or _NAMES.get(word.removesuffix("s")) or word.removesuffix("s")
                units.add(name + power)
    return units
