"""Which answers count as the same, and which answers math-verify alone would reward wrongly."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("math_verify")

from nemo_uecr.verifier.compare import compare_answers, judge_plain
from nemo_uecr.verifier.extract import Checked, Verdict
from nemo_uecr.verifier.pool import check_response, judge
from nemo_uecr.verifier.value import parsed

ROOT = Path(__file__).resolve().parents[2]
#: Verdicts by kind of answer; `+` where the answer is right and `-` where it is not, the answer, `:::`, its reference.
VERDICTS = (Path(__file__).parent / "verdicts.txt").read_text(encoding="utf-8")
#: The oracle's frozen table: rows of given answer, reference answer and verdict, by kind of form.
TABLE = json.loads((ROOT / "tools/oracle/verifier.json").read_text(encoding="utf-8"))["numbers"]


@pytest.mark.parametrize("kind", TABLE)
def test_every_pair_of_the_frozen_table(kind: str) -> None:
    found = [[answer, reference, judge(answer, reference).value] for answer, reference, _ in TABLE[kind]]
    assert found == TABLE[kind]


@pytest.mark.parametrize("kind", VERDICTS.split("# ")[1:], ids=lambda kind: kind.split("\n")[0])
def test_every_verdict_of_the_list(kind: str) -> None:
    lines = kind.splitlines()[1:]
    for line in lines:
        answer, reference = line[2:].split(" ::: ")
        assert judge(answer, reference) is (Verdict.CORRECT if line[0] == "+" else Verdict.WRONG), line
    assert lines


def test_percentages_with_the_grammars_of_older_antlr(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.9.3, which hydra-core pins, and 4.11: an atom of theirs has no FUNC_GAMMA. tests/nemo runs on the former."""
    from latex2sympy2_extended.antlr_parser import PSParser

    monkeypatch.delattr(PSParser.AtomContext, "FUNC_GAMMA")
    parsed.cache_clear()
    lines = [line for line in VERDICTS.splitlines() if " ::: " in line and ("%" in line or "percent" in line)]
    wanted = {line: Verdict.CORRECT if line[0] == "+" else Verdict.WRONG for line in lines}
    assert {line: compare_answers(*line[2:].split(" ::: ")) for line in lines} == wanted
    assert len(lines) > 10


@given(st.integers(-(10**9), 10**9), st.integers(0, 3), st.integers(0, 3))
def test_forms_of_one_integer(number: int, zeros: int, leading: int) -> None:
    sign = "-" if number < 0 else ""
    written = f"{sign}{'0' * leading}{abs(number)}" + ("." + "0" * zeros if zeros else "")
    assert judge(written, str(number)) is Verdict.CORRECT
    assert judge(f"{number:,}", str(number)) is Verdict.CORRECT
    assert judge(written, str(number + 1)) is Verdict.WRONG


#: Beyond these bounds the sums of the test itself are rounded, to the 28 digits of `decimal`.
@given(st.decimals(-(10**12), 10**12, places=4), st.integers(-9, 9))
def test_scientific_notation_is_exact(value: Decimal, power: int) -> None:
    assert judge_plain(f"{value}e{power}", f"{value.scaleb(power):f}") is Verdict.CORRECT
    assert judge_plain(rf"{value} \times 10^{{{power}}}", f"{value.scaleb(power):f}") is Verdict.CORRECT
    assert judge_plain(f"{value}e{power}", f"{value.scaleb(power) + 1:f}") is Verdict.WRONG


def test_verdicts_and_rewards() -> None:
    assert check_response(r"\boxed{5}", "5") == Checked(Verdict.CORRECT, "5")
    assert check_response(r"\boxed{6}", "5") == Checked(Verdict.WRONG, "6")
    assert check_response("5", "5") == Checked(Verdict.NO_ANSWER, None)
    assert check_response(r"\boxed{ }", "5") == Checked(Verdict.NO_ANSWER, "")
    assert check_response(r"\boxed{5}", r"\boxed{5}") == Checked(Verdict.CORRECT, "5")  # a boxed reference
    assert check_response(r"The answer is not \boxed{5} but \boxed{6}.", "5").verdict is Verdict.WRONG
    assert [Checked(verdict, None).reward for verdict in Verdict] == [1.0, 0.0, 0.0, 0.0, 0.0]


NONSENSE = [
    r"\frac{1}{0}", r"\frac", r"\left(", r"\begin{matrix}", "&", "_", "^", "^^", "x_", "{}", "%", "#", "\x00", "∑",
    "\\", r"\text{", "1e400000000", "nan", "inf", "None", "__import__('os')", "a=b=c", "1=2", r"\sum_{", "[1,2", "|x",
    "||", "0^0",
]  # fmt: skip


def test_nonsense_is_wrong_or_an_error_but_never_a_crash() -> None:
    assert {judge(text, "7") for text in NONSENSE} <= {Verdict.WRONG, Verdict.ERROR}


#: Answers that took over two seconds or a time-out, with a reference that differs; the last ones are slow to search.
SLOW = [
    ("9^{9^{9^{9}}}", "3"), ("9^{9^{9}}", r"\pi"), ("9^{9^{9}}", "9^{387420488}"), ("2^2^2^2^2^2^2^2", "x+1"),
    ("(x+1)^{1000}", "x"), ("(x+1)^{1000}", "(x+2)^{1000}"), ("99999999999!", "x"), ("2^{100000000}", "2^{100000001}"),
    ("(" * 300 + "x" + ")" * 300, "x+1"), (r"\frac{1}{" * 200 + "2" + "}" * 200, "x"), ("7" + r"\ " * 900, "8"),
    ("7" + r"\quad " * 300, "x"), ("7" + " " * 1800 + "8", "7"),
    (r"\int_0^1 e^{\sin(x^2)+\cos x^3} dx", r"\frac{1}{2}"),
    ("1+" * 900 + "1", "902"), ("x" * 1900, "x^{1901}"),
    ("5 " + "ab" * 300 + "!", "5"), ("5" + r"\text{a} " * 200 + "!", "5"),
    (r"\bar " + "()" * 200 + "!=5", "5"), ("the " + "$" * 1800, "B"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "reference"), SLOW, ids=lambda text: text[:12])
def test_what_is_refused_cheaply_takes_no_two_seconds(answer: str, reference: str) -> None:
    compare_answers("1/2", r"\frac{1}{2}")  # imports what it needs
    began = time.process_time()
    assert (judge_plain(answer, reference) or compare_answers(answer, reference)) is Verdict.WRONG
    assert time.process_time() - began < 2.0


def test_plain_answers_load_nothing_heavy() -> None:
    program = (
        "import sys; from nemo_uecr.verifier.pool import check_response;"
        "check_response('\\\\boxed{1,234}', '1234'); sys.exit(any(m in sys.modules for m in ('sympy', 'math_verify')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
