"""Times of day, scores and ratios, which are no quotients."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from nemo_uecr.verifier.equivalence import judge
from nemo_uecr.verifier.verdict import Verdict

REFUSED = [
    ("9:45", "3:15"), ("1:5", "3:15"), (r"1:5\text{ p.m.}", r"3:15\text{ p.m.}"), ("1:3", "10:30"), ("2:60", "1:30"),
    ("0", "0:30"), ("0:30", "0:45"), ("8", "8:00"), ("8:0", "8:00"), ("2:4", "1:2"), ("1:2", "2:4"), ("3:05", "3:5"),
    ("3 : 45", "1 : 15"),
    ("1/5", "3:15"), (r"\frac{1}{5}", "3:15"), ("0.2", "3:15"), ("3015", "3:15"), ("12", "12:1"), ("-1:2", "1:-2"),
    ("1.5:3", "1:2"),
    (r"1:\frac{5}{1}", "3:15"), ("a:b=2:4", "a:b=1:2"), ("1:2", "a:b=1:2"), (r"\text{9:45 p.m.}", r"\text{3:15 p.m.}"),
    ("3:15:00", "3:15"), ("2:4:6", "1:2:3"), ("3:15 am", "3:15 pm"), ("5 am", "5 pm"), ("5 a.m.", "5 p.m."),
    ("5", "5am"),
    (r"\frac{1}{2} am", r"\frac{1}{2} pm"), ("5 pm", "5"), ("3:15, 4:20", "4:20, 3:16"),
]  # fmt: skip
ACCEPTED = [
    ("3 : 15", "3:15"), ("03:15", "3:15"), ("08:00", "8:00"), (r"8:00\text{ a.m.}", "8:00 a.m."),
    ("8:00", r"8:00\text{ p.m.}"),
    (r"\text{3:15 p.m.}", "3:15 p.m."), (r"3:15\text{ PM}", r"3:15\text{ p.m.}"), ("a : b = 1:2", "a:b=1:2"),
    (r"1:\sqrt{2}", r"1 : \sqrt2"), ("3:15, 4:20", "4:20, 3:15"), (r"5\text{ pm}", "5 p.m."),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), REFUSED)
def test_refused(given: str, expected: str) -> None:
    assert judge(given, expected) is Verdict.WRONG


@pytest.mark.parametrize(("given", "expected"), ACCEPTED)
def test_accepted(given: str, expected: str) -> None:
    assert judge(given, expected) is Verdict.CORRECT
