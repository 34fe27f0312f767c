"""Answers that math-verify takes for the reference answer and that are not."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from nemo_uecr.verifier.equivalence import judge
from nemo_uecr.verifier.precision import precise
from nemo_uecr.verifier.verdict import Verdict

REFUSED = [
    *[(f"{left}=10", "10") for left in (
        "x^2", "2x", "x+1", r"\sin x", "x+y", "xy", "1/x", "-y", r"\sqrt{x}", r"\frac{x}{2}", "P(x)+1", r"\pi", "e",
    )],
    ("2y=x^2+1", "x^2+1"),
    ("x=2x+3", "2x+3"),
    ("2x=5", "x=5"),
    ("y=5", "x=5"),
    ("0.0", r"\frac{1}{3000000}"),
    ("0.000001", r"\frac{1}{2^{20}}"),
    ("1.0", "1-e^{-20}"),
    ("(0.0, 1)", r"(\frac{1}{3000000}, 1)"),
    ("1, 234", "1234"),
    ("12144", "12, 144"),
    ("4,4,4", "4"),
    ("1,-2,-2", "1,-2"),
    *[(rf"10\text{{{words}}}", "10") for words in (
        " or eleven", " million", " dozen", " is not the answer", " squared", "th power of two", ", eleven",
    )],
    (r"\{6,31,-1\}", "(6,31,-1)"),
    ("[6,31,-1]", "(6,31,-1)"),
    ("6,31,-1", "(6,31,-1)"),
    ("(-2,1)", "1,-2"),
    ("[4,4]", "4"),
    (r"[-\infty,2)", r"(-\infty,2)"),
    (r"90\text{ radians}", r"90^\circ"),
    ("5 cm", r"5\text{ m}"),
    ("5m", r"5\text{ cm}"),
    (r"5\text{ euros}", r"\$5"),
    (r"5\%", r"5\text{ cm}"),
    (r"18.90\text{ cents}", r"\$18.90"),
    ("CBA", "ABC"),
    ("A", "A1"),
    ("NaN", "NaN1"),
    ("x1", "x"),
    (r"\text{AC}", r"\text{CA}"),
    ("5'", "5"),
    ("2^10", "1024"),
    ("10^34", "10^{34}"),
    *[(f"203{joint}1", "204") for joint in (" ", r"\ ", r"\quad ", r"\,", "~", "{}", " {", r"\text{ hours }")],
    ("(203) 1", "204"),
    (r"203\frac{1}{1}", "204"),
    ("3 5 7", "15"),
    ("2 1/2", r"\frac{3}{2}"),  # no (2 + 1) / 2
    ("1 6/2", "4"),
    (r"58\,500\text{ km}", "558"),
    ("7. 5", "7.5"),
    (r"\sqrt51", r"\sqrt{5}"),
    (r"\sqrt5 1", r"\sqrt{5}"),
    (r"\frac{3}41", r"\frac{3}{4}"),
    (r"\frac121", r"\frac{1}{21}"),
    (r"1+274\mathrm{i}", "275"),
    (r"200+3+1\mathbf{i}", "204"),
    (r"6-5\mathrm{i}", "1"),
    (r"3\mathbf{i}+4\mathbf{j}", "7"),
    *[(rf"5{symbol}", "5") for symbol in (
        r"\mathrm{i}", r"\mathbf{i}", r"\mathit{x}", r"\mathrm{K}", r"\mathrm{n}", r"\mathrm{x}^2", r" \mathrm{e}",
        *(rf"\text{{{mark}}}" for mark in "!²+'*?√"),
    )],
    (r"2\mathrm{m}+1", "3"),
    (r"5\text{ cm}^{-1}", r"5\text{ cm}"),
    (r"5\text{ cm}^{22}", r"5\text{ cm}^2"),
    (r"5\text{ cm}^2\text{ cm}^2", r"5\text{ cm}^2"),
    (r"5\text{ s/m}", r"5\text{ m/s}"),
    (r"5\text{ gallons per minute}", r"5\text{ quarts per minute}"),
    (r"30\text{ miles per quart}", r"30\text{ miles per gallon}"),
    (r"3\text{ girls per hour}", r"3\text{ boys per hour}"),
    (r"5^\circ\mathrm{F}", r"5^\circ\mathrm{C}"),
    (r"5\text{ per cent}", r"5\text{ cents}"),
    (r"3\text{ hours }20\text{ hours}", r"3\text{ hours}"),
    (r"5\text{ boys}", r"5\text{ cm}"),
    (r"\frac{\pi}{3}^\circ", r"\frac{\pi}{3}"),
    ("3r^2", "3R^2"),
    ("1, 234", "1,234"),
    ("58 , 500", "58,500"),
    ("1,1,2", "1,2,2"),
    ("1,,2", "1,2"),
    ("(1.00000001, 1)", "(1.00000002, 1)"),  # two decimals are no approximations of each other
    ("2R+r", "R+2r"),
    (r"\Pi", r"\pi"),
    ("X", "x"),
]  # fmt: skip
ACCEPTED = [
    ("x=10", "10"),
    ("f(x)=x^2+1", "x^2+1"),
    (r"N = 2^{10} = 1024", "1024"),
    (r"(r,\theta)=(3,\pi/2)", r"\left( 3, \frac{\pi}{2} \right)"),
    ("x = 5.0", "x=5"),
    ("0.333333", r"\frac{1}{3}"),
    ("0.000000333333333", r"\frac{1}{3000000}"),
    ("3.141593", r"\pi"),
    ("e", "2.718282"),
    *[(one, "4") for one in ("(4)", "[4]", r"\{4\}", "4+0i")],
    (r"\frac12", "0.5"),
    ("1e3", r"\frac{2000}{2}"),
    (r"10\text{ ways}", "10"),
    (r"5\text{ square units}", "5"),
    ("5 cm", r"5\text{ cm}"),
    (r"5\text{ dollars}", r"\$5"),
    (r"90\text{ degrees}", r"90^\circ"),
    (r"\{1,-2\}", "1,-2"),
    (r"1, 2, \text{ and } 3", "1,2,3"),
    (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}"),
    ("[-2,7]", r"x \in [-2,7]"),
    (r"\text{ABC}", "ABC"),
    ("12,144", "12, 144"),
    ("2^{10}", "1024"),
    ("2 1/2", r"\frac{5}{2}"),
    (r"1\frac45", r"\frac{9}{5}"),
    (r"58\,500\text{ km}", "58500"),
    (r"\sqrt5", r"\sqrt{5}"),
    (r"\frac{3}4", "0.75"),
    (r"\log_{2} 8", "3"),
    (r"6-5\mathrm{i}", "6-5i"),
    ("6-5i", r"6-5\mathrm{i}"),
    (r"5\mathrm{n}", "5n"),
    (r"5\mathrm{m}", "5m"),
    (r"\mathrm{x}+1", "x+1"),
    (r"5\,\mathrm{m}", "5"),
    (r"5\ \mathrm{m}^2", "5"),
    (r"5\,\mathrm{m}/\mathrm{s}", r"5\text{ m/s}"),
    (r"5\text{ cm²}", "5"),
    (r"\mathrm{C}", r"\text{(C)}"),
    ("c", r"\text{(C)}"),
    ("c", "(C)"),
    ("2,1,2", "1,2,2"),
    ("3, 5, 7", "3,5,7"),
    (r"5\text{ apples}", r"5\text{ apples per day}"),  # a measure that only one has does not count
    ("evelyn", r"\text{Evelyn}"),
    ("A = a^2", "a^2"),
    ("R+r", "R + r"),
    (r"5\text{ m}/\text{s}", r"5\text{ meters per second}"),
    (r"5\text{ m s}^{-1}", r"5\text{ m/s}"),
    (r"5\text{ cm²}", r"5\text{ square cm}"),
    (r"3\text{ per hour}", r"3\text{ boys per hour}"),
    (r"5^\circ\mathrm{C}", r"5^\circ"),
    (r"5^\circ\mathrm{C}", r"5\text{ degrees Celsius}"),
    (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3}2"),
]


@pytest.mark.parametrize(("given", "expected"), REFUSED)
def test_refused(given: str, expected: str) -> None:
    assert judge(given, expected) is Verdict.WRONG


@pytest.mark.parametrize(("given", "expected"), ACCEPTED)
def test_accepted(given: str, expected: str) -> None:
    assert judge(given, expected) is Verdict.CORRECT


def test_a_decimal_is_less_than_one_unit_of_its_last_digit_away() -> None:
    """2 - 1.9999999 is 1e-7, one whole unit."""
    sympy = pytest.importorskip("sympy")
    assert not precise(sympy.Integer(2), sympy.Float("1.9999999"))
    assert precise(sympy.Rational(1, 3), sympy.Float("0.3333333"))
