r"""How near a decimal must be to a number that it is not: math-verify rounds to six decimals, however small the number.

An answer that is not exactly its reference answer counts only as a decimal, and only where

    at least 6 significant digits are written, zeros at the end not counted,   and
    |decimal - number| < one unit of its last digit,   |decimal - number| <= 1e-6 · |number|

beside math-verify's own rule. So 0.333333 counts for 1/3, and 0.0 for 1/3000000 does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

SIGNIFICANT = 6
RELATIVE = Decimal("1.000001e-6")
#: Digits to which two exact expressions are compared.
DIGITS = 60
EXACT = Decimal(10) ** -40


def precise(expected: object, given: object) -> bool:
    """Whether what math-verify took for equal is equal number by number; True where the numbers do not line up."""
    ours, theirs = list(_numbers(given)), list(_numbers(expected))
    if len(ours) != len(theirs):
        return True
    with localcontext() as context:
        context.prec = 2 * DIGITS
        return all(_near(*pair) for pair in zip(ours, theirs, strict=True))


def _numbers(value: Any) -> Iterator[Any]:
    """The real numbers of an expression, a tuple, a set, an interval or a matrix, in an order of its own."""
    import sympy

    if isinstance(value, sympy.Interval):
        yield from (end for end in (value.start, value.end) if _is_real(end))
    elif isinstance(value, sympy.FiniteSet):
        numbers = [number for member in value.args for number in _numbers(member)]
        yield from sorted(numbers, key=lambda number: float(number.evalf(15)))
    elif isinstance(value, sympy.MatrixBase):
        for entry in value.flat():
            yield from _numbers(entry)
    elif isinstance(value, sympy.Tuple | sympy.Union):
        for member in value.args:
            yield from _numbers(member)
    elif isinstance(value, sympy.Expr) and value.is_number and _is_real(value):
        yield value


def _is_real(number: Any) -> bool:
    """Whether a number is real and finite, by its value.

    Not by sympy's assumptions: those of a product that is not multiplied out, such as ``6(0)/6``, contradict each other
    in some of the random orders in which sympy asks for them.
    """
    import sympy

    value = number.evalf(15)
    return isinstance(value, sympy.Number) and value.is_finite is True


def _near(given: Any, expected: Any) -> bool:
    hundred = (1, 100, Decimal("0.01")) if _percent(given) or _percent(expected) else (1,)
    ours, theirs = _decimal(given), _decimal(expected)
    return any(
        _within(ours * factor, theirs, [number for number in (given, expected) if _written(number) is not None])
        for factor in hundred
    )


def _within(ours: Decimal, theirs: Decimal, decimals: list[Any]) -> bool:
    gap, size = abs(ours - theirs), max(abs(ours), abs(theirs))
    if gap <= EXACT * size or (len(decimals) == 2 and gap <= Decimal("1e-14") * size):
        return True
    if len(decimals) == 1:
        written = _written(decimals[0])
        if written is not None and len(written.as_tuple().digits) >= SIGNIFICANT:
            return gap < Decimal(10) ** int(written.as_tuple().exponent) and gap <= RELATIVE * size
    return False


def _written(number: Any) -> Decimal | None:
    """A decimal as it was written; None for an exact number."""
    return Decimal(str(number)).normalize() if number.is_Float else None


def _percent(number: Any) -> bool:
    return bool(number.is_Mul) and any(factor.is_Rational and factor.q == 100 for factor in number.args)


def _decimal(number: Any) -> Decimal:
    import sympy

    written = _written(number)
    if written is not None:
        return written
    exact = number.replace(lambda part: part.is_Float, lambda part: sympy.Rational(str(part)))
    return Decimal(str(exact.evalf(DIGITS)))
