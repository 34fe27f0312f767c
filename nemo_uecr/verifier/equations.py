r"""What an equation may say when the reference answer is none: a name and its value, ``x=5`` or ``N=2^{10}=1024``."""

from __future__ import annotations

import re

from nemo_uecr.verifier.structure import top_level

_GREEK_WORDS = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau phi varphi chi psi omega ell Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega "
)
_GREEK = _GREEK_WORDS.split()
_QUANTITIES_WORDS = "area volume perimeter answer total sum length probability distance time speed cost "
_QUANTITIES = _QUANTITIES_WORDS.split()
_INDEX = r"(?:\s*_\s*(?:\w|\{\s*\w+\s*\}))?"
_UNKNOWN = rf"(?:(?!e(?![A-Za-z]))[A-Za-z]|\\(?:{'|'.join(_GREEK)})(?![A-Za-z])){_INDEX}"
_NAME = re.compile(
    rf"\s*(?:(?P<function>{_UNKNOWN})\s*\(\s*{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*\s*\)"
    rf"|\(\s*{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*\s*\)|(?P<unknown>{_UNKNOWN})"
    rf"|\\(?:text|mathrm)\s*\{{\s*(?:{'|'.join(_QUANTITIES)})\s*\}})\s*",
    re.IGNORECASE,
)
_SYMBOL = re.compile(r"\\[A-Za-z]+|[A-Za-z]")


def values_of(given: str, expected: str) -> list[str] | None:
    """The sides of an answer that must all be the reference answer; None for an equation that names no value.

    One side may be a bare unknown, as long as no other side has it: `2x=10`, `x+1=10` and `x=2x+3` name no value.

    Args:
        given: the response's answer.
        expected: the reference answer. If it is an equation itself, the answer stands as it is.
    """
    if "=" in expected:
        return [given]
    sides = [side for side in top_level(given, "=") if side.strip()]
    if len(sides) < 2:
        return [given]
    names = [_NAME.fullmatch(side) for side in sides[:-1]]
    values = [side for side, name in zip(sides, [*names, None], strict=True) if name is None]
    unknowns = {name["unknown"] or name["function"] for name in names if name is not None} - {None}
    symbols = {symbol for value in values for symbol in _SYMBOL.findall(value)}
    if len([name for name in names if name is not None]) > 1 or unknowns & symbols:
        return None
    return values


def value_of_named(expected: str) -> tuple[str, str] | None:
    """Unknown and value of a reference answer such as `x=5`; None for any other, such as `y=2x+3`."""
    sides = top_level(expected, "=")
    name = _NAME.fullmatch(sides[0])
    if len(sides) != 2 or name is None or name["unknown"] is None:
        return None
    letters = [symbol for symbol in _SYMBOL.findall(sides[1]) if not symbol.startswith("\\")]
    return None if letters or "," in sides[1] else (name["unknown"].strip(), sides[1].strip())
