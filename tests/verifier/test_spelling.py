"""Primes, relations and blanks in their spellings, and words in either case."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from nemo_uecr.verifier.equivalence import judge
from nemo_uecr.verifier.verdict import Verdict

PRIMES = [
    ("f'(x)", "f(x)"), ("f(x)", "f'(x)"), ("f''(x)", "f'(x)"), (r"f^{\prime}(x)", "f(x)"),
    (r"f^{\prime\prime}(x)", "f'(x)"),
    ("y''+y=0", "y'+y=0"), ("y+y''=0", "2y''=0"), ("2y''+y=0", "y''+2y=0"), ("2x'", "2x"), ("2x", "2x'"),
    ("g'(1)=3", "g(1)=3"),
    ("A'", "A"), (r"\triangle A'B'C'", r"\triangle ABC"), ("A'B", "AB'"), (r"\text{A}", r"\text{A'}"), ("(fg)'", "fg"),
    ("x=5", "x'=5"), ("5", "x'=5"), ("3", "3'"), ("12", "1'2"), ("5'", "5''"), ("5", '5"'), ("A^T", "A'"),
    (r"\theta'", r"\theta"),
    ("2',1", "2,1'"), *[(f"x{prime}", "x") for prime in ("\u2032", "\u2019", "\u2033")],
]  # fmt: skip
RELATIONS = [
    ("x<3", r"x\le 3"), (r"x\leq 3", r"x\geq 3"), (r"x\neq 3", "x=3"), (r"x\geq 3", r"y\ge 3"),
    (r"0\leq x<1", r"0\le x\le 1"), ("6>=5", "5"), ("5<=5", "5"), ("x≠5", "5"), (r"0\lt 5", "5"), ("3", "x>=3"),
    ("x=>3", r"x\ge 3"),
]  # fmt: skip
BLANKS = [
    (r"10 \mathrm{~cm}", r"10\text{ m}"), (r"10\mathrm{~cm}^2", r"10\mathrm{~cm}"), (r"10\mathrm{~i}", "10"),
    (r"10\mathrm{~x}", "10"),
    (r"1\mathrm{~000}", "1000"), (r"10~\text{ or }~11", "10"), (r"10\text{~million}", "10"), ("6~5", "5"),
]  # fmt: skip
WORDS = [
    ("abc", "ABC"), ("ABC", "abc"), (r"\text{abc}", "ABC"), ("pqr", r"\text{PQR}"), ("XYZ", "xyz"), ("NaN", "nan"),
    ("Odd", "Even"),
    ("TRUE", "false"), ("CBA", "abc"),
]  # fmt: skip
REFUSED = PRIMES + RELATIONS + BLANKS + WORDS
ACCEPTED = [
    (r"f^{\prime}(x)", "f'(x)"), (r"f^{\prime\prime}(x)", "f''(x)"),
    (r"y''+y = 0", r"y^{\prime\prime}+y=0"), *[(f"x{prime}", "x'") for prime in ("\u2032", "\u2019")],
    ("f '(x)", "f'(x)"), (r"\text{A'}", "A'"), ("Simpson's rule", "\\text{Simpson\u2019s rule}"), ("5''", '5"'),
    *[(rf"x{sign} 3", r"x\ge 3") for sign in (r"\geq", r"\geqslant", ">=", "≥")],
    *[(r"x\le 3", rf"x{sign} 3") for sign in (r"\leq", r"\leqslant", "<=", "≤")],
    *[(rf"x{sign} 3", r"x\ne 3") for sign in (r"\neq", r"\not=", "≠")],
    (r"0 \leq x \leq 1", r"0 \le x \le 1"), (r"1\lt x \leq 2", "(1,2]"), (r"x\leq 3.0", r"x\le 3"),
    *[(rf"10 \mathrm{{{blank}cm}}", r"10\text{ cm}") for blank in ("~", r"\,", r"\ ", r"\;")],
    (r"10 \mathrm{~cm}", "10"), (r"10 \mathrm{~cm}^{2}", r"10\text{ cm}^2"), (r"10 \mathrm{~m}", "10"),
    (r"5\text{~}", "5"),
    (r"10 \mathrm{~m} / \mathrm{s}", r"10\text{ m/s}"),
    ("True", "true"), ("FALSE", "false"), ("even", "Even"), ("Increasing", "increasing"), ("ellipse", "Ellipse"),
    ("YES", "yes"),
    ("no", "NO"), ("Sunday", "SUNDAY"), (r"\text{EVEN}", r"\text{even}"), ("EVELYN", r"\text{Evelyn}"),
    (r"$\text{True}$", "true"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), REFUSED)
def test_refused(given: str, expected: str) -> None:
    assert judge(given, expected) is Verdict.WRONG


@pytest.mark.parametrize(("given", "expected"), ACCEPTED)
def test_accepted(given: str, expected: str) -> None:
    assert judge(given, expected) is Verdict.CORRECT
