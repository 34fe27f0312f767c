"""What an answer may be where the reference answer is an equation."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from nemo_uecr.verifier.equivalence import judge
from nemo_uecr.verifier.verdict import Verdict

#: A right-hand side and the equation that it is no answer to.
SIDES = [
    ("0", "ax+by+c=0"), ("0", "f(x)=0"), ("0", "P(x)=0"), ("0", "ab=0"), ("0", "a=b=0"), ("0", "x_1x_2=0"),
    ("0", "y'=0"),
    ("1", "x+y=1"), ("1", "a+b+c=1"), ("1", "x_1+x_2=1"), ("1", "xy=1"), ("1", r"\frac{x}{y}=1"),
    ("1", r"\alpha\beta=1"),
    ("-1", "mn=-1"), ("k", "ab=k"), ("5", "x=y=5"), ("5", "x_1=x_2=5"), ("5", "|x|=5"), ("7", r"a \cdot b=7"),
    ("12", "AB=12"), ("60", r"\angle A=60"), (r"\frac{\pi}{2}", r"\sin x=\frac{\pi}{2}"), ("3", "m\\angle A=3"),
    ("2x+3", "x=2x+3"), ("2x", "y'=2x"), ("g(x)", "f(x)=g(x)"), ("f(-x)", "f(x)=f(-x)"), ("x", "f(g(x))=x"),
    ("2a_{n-1}", "a_n=2a_{n-1}"), ("1,2", "x+y=1,x-y=2"),
]  # fmt: skip
#: Several unknowns in a list that does not say which is which.
LISTS = [
    ("6,5", "x=5,y=6"), ("5,6", "x=5,y=6"), ("6,5", r"x=5\text{ and }y=6"), (r"\{6,5\}", "x=5,y=6"),
    ("2,1,3", "a=1,b=2,c=3"),
    ("3,2", "k=2, m=3"), ("2,1", "x_1=1,x_2=2"), ("2,1", r"\alpha=1,\beta=2"), ("2,1", "a=1;b=2"), ("2,1", "x=1,y+z=2"),
    ("x=6,y=5", "x=5,y=6"), ("a=5,b=6", "x=5,y=6"), ("x=5", "x=5,y=6"), ("4,6", "x=4,x=5"), ("(6,5)", "(x,y)=(5,6)"),
]  # fmt: skip
REFUSED = SIDES + LISTS
ACCEPTED = [
    ("5", "x=5"), ("5", "x_1=5"), ("5", r"\text{Area}=5"), ("5", "E=5"), ("1234", "N=1,234"), ("N=1234", "N=1,234"),
    ("1024", "N=2^{10}=1024"), ("2x+3", "y=2x+3"), ("2x+3=y", "y=2x+3"), ("2y=4x+6", "y=2x+3"), ("x^2+1", "f(x)=x^2+1"),
    ("x", "f(x)=x"), ("k", "x=k"), (r"\pi r^2", r"S=\pi r^2"), ("2n+1", "a_n=2n+1"), (r"\pm 5", r"x=\pm 5"),
    ("(5,6)", "(x,y)=(5,6)"),
    ("5,4", "x=4,x=5"), ("4,5", "x=4,5"), ("x=4,x=5", "x=4,5"), ("y=6,x=5", "x=5,y=6"),
    (r"y=6,x=5", r"x=5\text{ and }y=6"),
    ("10", r"\sum_{k=1}^{4} k"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), REFUSED)
def test_refused(given: str, expected: str) -> None:
    assert judge(given, expected) is Verdict.WRONG


@pytest.mark.parametrize(("given", "expected"), ACCEPTED)
def test_accepted(given: str, expected: str) -> None:
    assert judge(given, expected) is Verdict.CORRECT
