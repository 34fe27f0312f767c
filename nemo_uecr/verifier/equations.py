r"""What an equation may say when the other answer is none: a name and its value, ``x=5`` or ``N=2^{10}=1024``."""

from __future__ import annotations

import re

from nemo_uecr.verifier.structure import list_parts, top_level

_GREEK_WORDS = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma "
    "tau phi varphi chi psi omega ell Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega "
)
_GREEK = _GREEK_WORDS.split()
_QUANTITIES_WORDS = "area volume perimeter answer total sum length probability distance time speed cost "
_QUANTITIES = _QUANTITIES_WORDS.split()
_INDEX = r"(?:\s*_\s*(?:\w|\{\s*\w+\s*\}))?"
_UNKNOWN = rf"(?:(?!(?-i:e)(?![A-Za-z]))[A-Za-z]|\\(?:{'|'.join(_GREEK)})(?![A-Za-z])){_INDEX}"
_NAME = re.compile(
    rf"\s*(?:(?P<function>{_UNKNOWN})\s*\(\s*(?P<arguments>{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*)\s*\)"
    rf"|\((?P<point>\s*{_UNKNOWN}(?:\s*,\s*{_UNKNOWN})*\s*)\)|(?P<unknown>{_UNKNOWN})"
    rf"|\\(?:text|mathrm)\s*\{{\s*(?:{'|'.join(_QUANTITIES)})\s*\}})\s*",
    re.IGNORECASE,
)
_TEXT = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf|textit|mathit|operatorname)\s*\{[^{}]*\}")
_SYMBOL = re.compile(r"\\[A-Za-z]+|[A-Za-z]")


def is_equation(text: str) -> bool:
    """Whether an equals sign stands within no bracket; that of a sum's range makes no equation."""
    return "=" in text and len(top_level(text, "=")) > 1


def values_of(given: str, expected: str) -> list[str] | None:
    """The sides of an answer that must all be the reference answer; None for an equation that names no value.

    One side may be a bare unknown, as long as no other side has it: `2x=10`, `x+1=10` and `x=2x+3` name no value.

    Args:
        given: the response's answer.
        expected: the reference answer. If it is an equation itself, the answer stands as it is.
    """
    if is_equation(expected):
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
    return None if letters or len(list_parts(sides[1])) > 1 else (name["unknown"].strip(), sides[1].strip())


def value_without_names(expected: str) -> str | None:
    r"""What an answer that is no equation must be where the reference answer is one; None where nothing is right.

    One bare unknown has a value: `y=2x+3` names `2x+3`, and `x=4,x=5` the list `4,5`. So has a function of its own
    argument, `f(x)=x^2`. `x+y=1`, `ab=0` and `f(x)=0` are equations to be solved, and `x=5,y=6` says which is which.
    """
    first, *others = list_parts(expected)
    named = [_named_value(part) for part in (first, *others) if is_equation(part)]
    if not is_equation(first) or None in named or len(named) not in (1, 1 + len(others)):
        return None
    values = [value for pair in named if pair is not None for value in pair[1:]]
    names = {pair[0] for pair in named if pair is not None}
    return None if len(names) > 1 else ",".join([*values, *(others if len(named) == 1 else [])])


def _named_value(equation: str) -> tuple[str, str] | None:
    """Name and value of an equation whose first side is a name and no other one has it."""
    first, *sides = top_level(equation, "=")
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
