"""Numbers as people write them: decimals, thousands set off, scientific notation; exact, without floating point."""

from __future__ import annotations

import re

#: Digits with their thousands set off by commas or not at all: ``1,2`` is a list, and no thousands follow a zero.
_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d*)?"
#: A power of ten. LaTeX raises one digit unless there are braces, so ``10^34`` is left to those who read LaTeX.
_POWER = r"10\^(?:\{(?P<braced>[+-]?\d{1,12})\}|(?P<bare>\d)(?!\d))"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<digits>{_DIGITS})(?:[eE](?P<exponent>[+-]?\d{{1,12}})|(?:\\times|\\cdot|\*) ?{_POWER})?)"
)
_TEN = re.compile(rf"(?P<sign>[+-]?){_POWER}")
#: What sets thousands apart in LaTeX: a braced comma, a comma with negative space, a thin space.
_SEPARATOR = re.compile(r"\{,\}(?:\\!)?|,\\!|(?<=\d)\\,(?=\d{3}(?!\d))")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+\.?\d*|\.\d+)[eE]([+-]?)0*(\d{1,3})(?![\w.])")


def plain_number(text: str) -> tuple[str, str, int] | None:
    """Sign, digits and power of ten of a number written in digits; None for anything else.

    value = sign · digits · 10^power,   digits without zeros at either end, so that equal values are equal tuples

    Args:
        text: without blanks, but for those that keep two letters or digits apart.
    """
    plain = _SEPARATOR.sub(",", text).strip("$")
    match = (_NUMBER.fullmatch(plain) or _TEN.fullmatch(plain)) if plain.isascii() else None
    if match is None:
        return None
    parts = match.groupdict()
    whole, _, fraction = (parts.get("digits") or "1").replace(",", "").partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "", "", 0
    power = int(parts.get("exponent") or parts["braced"] or parts["bare"] or 0) - len(fraction)
    bare = digits.rstrip("0")
    return "-" if parts["sign"] == "-" else "", bare, power + len(digits) - len(bare)


def powers_spelled_out(text: str) -> str:
    r"""The text with ``1.5e3`` as ``(1.5\times 10^{3})``, which every reader of LaTeX understands."""
    return _SCIENTIFIC.sub(lambda match: rf"({match[1]}\times 10^{{{match[2].strip('+')}{match[3]}}})", text)
