"""Which answers count as the same, and answers that try to stop the run."""

from __future__ import annotations

import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.verifier.equivalence import check_response, judge, judge_plain
from nemo_uecr.verifier.products import products_spelled_out
from nemo_uecr.verifier.verdict import Checked, Verdict

SAME = [
    ("5", "5"),
    ("5.0", "5"),
    ("5.", "5"),
    (".5", "0.5"),
    ("+5", "5"),
    ("005", "5"),
    ("-0", "0"),
    ("-0.0", "0"),
    ("0", "0.000"),
    ("1,234", "1234"),
    ("1{,}234", "1234"),
    ("1,234,567.50", "1234567.5"),
    ("$5$", "5"),
    (" 5 ", "5"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac12", r"\frac{1}{2}"),
    (r"\dfrac{1}{2}", r"\frac{1}{2}"),
    ("1/2", r"\frac{1}{2}"),
    (r"\sqrt{4}", "2"),
    *[(product, "21") for product in ("3(7)", "(3)(7)", r"3\left(7\right)", "3[7]", r"3\,(7)", "3 (7)", "7(1.5)(2)")],
    (r"2\binom{4}{2}", "12"),
    (r"\binom{4}{2} \dbinom{3}{1}", "18"),
    (r"\binom{5}{2}(3)", "30"),
    (r"\frac{4}{2}(3)", "6"),
    (r"\frac{1 + \frac{6}{2}}{2}(5)", "10"),
    (r"\left(3\right)\frac12", "1.5"),
    (r"1\frac{1}{2}", "1.5"),
    (r"3\frac{1}{2}(2)", "7"),
    ("3,2(5)", "3,10"),
    *[
        (form, "21")
        for form in (
            "3((7))",
            "[3](7)",
            "{3}(7)",
            r"3\displaystyle(7)",
            r"3\{7\}",
            r"3\:(7)",
            r"3\left(7\right)",
        )
    ],
    (r"\frac{d}{dx}(x^3)", "3x^2"),
    (r"\frac{d}{dx}\left(x^3\right)", "3x^2"),
    (r"2\frac{(6)}{2}", "6"),
    (r"\frac43\frac93", "4"),
    (r"3\frac{\binom{4}{2}}{2}", "9"),
    (r"\sqrt[3]{8}(2)", "4"),
    (r"\log_2(8)(3)", "9"),
    (r"\gcd(4,6)(3)", "6"),
    ("(12) (34)", "(12)(34)"),
    (r"\begin{pmatrix}2(3)\\5(1)\end{pmatrix}", r"\begin{pmatrix}6\\5\end{pmatrix}"),
    (r"\frac{3(7)}{3}", "7"),
    ("-3(7)", "-21"),
    ("3(1/2)", "1.5"),
    ("3(7)+1", "22"),
    (r"\sqrt{3(4)}\cdot\sqrt{3}", "6"),
    (r"\log_2(8)", "3"),
    (r"2^2(3)", "12"),
    ("3(x)", "3x"),
    (r"\sin(0)(3)", "0"),
    ("2(x+1)(3)", "6x+6"),
    (r"x=5", "5"),
    (r"5\text{ cm}", "5"),
    (r"90^\circ", "90"),
    (r"50\%", "50"),
    (r"\$5", "5"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("x+1", "1+x"),
    ("(1,2)", "(1, 2)"),
    (r"\text{Yes}", "Yes"),
    ("1000000000000000000000000000001", "1000000000000000000000000000001"),
    (r"\infty", r"\infty"),
    ("1e3", "1000"),
    ("1000", "1E+3"),
    ("-1.5e-3", "-0.0015"),
    ("10^3", "1000"),
    (r"10^{-2}", "0.01"),
    (r"1.5 \times 10^{3}", "1,500"),
    (r"2\cdot 10^2", "200"),
    (r"6.02 \times 10^{23}", "602000000000000000000000"),
    ("1e-3", r"\frac{1}{1000}"),
    ("1e2/1e1", "10"),
    ("x = -1e3", "-1000"),
    ("(1e3, 2e3)", "(1000, 2000)"),
    (r"10,\!080", "10080"),
    (r"5\,000", "5000"),
    (r"50\%", "0.5"),
    (r"1,000\text{ km}", "1000"),
    (r"\frac{21}{3} = 7", "7"),
    (r"\theta = 7", "7"),
    (r"\emptyset", r"\varnothing"),
    (r"x=4, x=5", "4,5"),
    (r"k=1 \text{ or } k=2", "1,2"),
    (r"4 \lor 5", "4,5"),
    (r"0.\overline{3}", r"\frac{1}{3}"),
    (r"0.1\overline{6}", r"\frac{1}{6}"),
    (r"0\le x<1", "[0,1)"),
    (r"x\in[0,1]", "[0,1]"),
    (r"\(5\)", "5"),
    (r"$864 \mbox{ inches}^2$", r"864\text{ square inches}"),
    (r"5\text{ centimeters}", r"5\text{ cm}"),
    ("2003_{4}", "2003_4"),
    ("1011", "1011_2"),  # the base is missing, as a unit may be
    # A point at the end of either is its sentence's; points that say "and so on" stay.
    *[(text, text) for text in ("10 a.m.", "0.333...", "1,2,...", "Washington D.C.", "x=5.", r"\frac{1}{2}.", "0,001")],
    ("x=5", "x=5."),
    ("0.5", r"\frac{1}{2}."),
    ("0,500", "0, 500"),
    ("(0,100)", "(0, 100)"),
]
DIFFERENT = [
    ("5", "6"),
    ("5", "-5"),
    ("0.5", "0.05"),
    ("12", "1.2"),
    ("1,2", "12"),  # a list of two, not twelve
    ("1,23", "123"),
    ("12,3", "123"),
    ("1,2345", "12345"),
    # No thousands follow a zero.
    *[(f"0{comma}500", "500") for comma in (",", "{,}", r",\!", r"\,")],
    *[("0,001", "1"), ("00,123", "123"), ("01,234", "1234"), ("-0,500", "-500"), ("0,500,000", "500000")],
    *[("000,123", "123")],
    *[("0,500e1", "5000"), (r"0,500\text{ cm}", "500"), ("0,500.5", "500.5"), ("500", "0,500")],
    *[("(0,500,2)", "(500,2)")],
    *[("0.333...", "0.333"), ("1,2,...", "1,2"), ("1,2", "1,2,..."), ("5..", "5"), ("0.9...", "1")],
    ("1,2", "1,2,3"),
    ("0.333", "1/3"),
    ("(1,2)", "(2,1)"),
    ("(1,2]", "(1,2)"),
    ("1000000000000000000000000000001", "1000000000000000000000000000002"),
    (r"\frac{1}{2}", r"\frac{1}{3}"),
    (r"\infty", r"-\infty"),
    ("x", "y"),
    *[(product, "10") for product in ("3(7)", "(3)(7)", r"3\left(7\right)", "3[7]", r"3\,(7)", "3 (7)", "2(5)(3)")],
    (r"2\binom{4}{2}", "8"), (r"\binom{4}{2}\binom{3}{1}", "9"), (r"\frac{4}{2}(3)", "5"), ("3,2(5)", "3,7"),
    *[(form, "10") for form in (
        "3((7))", "3[(7)]", r"3\left(\left(7\right)\right)", "3{(7)}", "{3}(7)", "{3}{(7)}", r"3\displaystyle(7)",
        r"3\{7\}", r"\{3\}(7)", "[3](7)", "[3][7]", r"\left[3\right]\left(7\right)", r"3\frac{14/2}{1}",
    )],
    *[(form, "5") for form in (
        r"2(\frac{(3)}{(1)})", r"2\frac{(6)}{2}", r"2\frac{+6}{2}", r"2\frac{6}{(2)}", r"2\,\frac{6}{2}",
        r"{2}\frac{6}{2}", r"2{\frac{6}{2}}", r"2\frac{{6}}{2}", r"2\displaystyle\frac{6}{2}",
    )],
    *[(rf"{three}\binom{{4}}{{2}}", "9") for three in ("{3}", "[3]", r"3\displaystyle")], (r"3{\binom{4}{2}}", "9"),
    (r"3((\frac{1}{2}))", "3.5"), (r"[3]\frac{1}{2}", "3.5"), (r"3\frac{\binom{4}{2}}{2}", "6"),
    ("(12)(13)", "(13)(12)"), ("(12)(34)", "(17)(24)"),
    ("-3(7)", "-10"), (r"3(\frac{1}{2})", r"\frac{7}{2}"), (r"\frac{3(7)}{2}", "5"), ("1(2)(3)", "6.0001"),
    (r"\frac{}{}", "5"),
    ("5 or 6", "6"),
    ("five", "5"),
    ("1e3", "100"),
    ("1e3", "3000"),
    ("1e3", "e^3"),
    ("2e2", "2e^2"),
    ("e3", "1000"),
    ("3e", "3"),
    ("1e1e1", "100"),
    ("1e3.5", "1000"),
    ("1,0e3", "1000"),
    ("1.000", "1000"),
    (r"1\,00", "100"),
    ("10^34", "1" + 40 * "0"),
    ("1e999999999", "1e999999998"),
    ("1e999999999", "7"),
    ("1e-999999999", "0"),
    (r"50\%", "5"),
    ("1e3 = 1e4", "10000"),  # an equation of two numbers names both
    (r"\frac{1}{2} = 7", "7"),
    (r"\binom{8}{1} = 7", "7"),
    (r"8 \Rightarrow 7", "7"),
    (r"8 \to 7", "7"),
    (r"8 \\ 7", "7"),
    *[(f"6{joint}5", "5") for joint in (
        r"\lor ", r"\vee ", r"\cup ", r"\space ", r"\enspace ", r"\Leftrightarrow ", r"\longmapsto ", r"\because ",
        r"\equiv ", r"\cong ", r"\sim ", r"\approx ", r"\mid ", r"\in ", r"\dots ", r"\land ", r"\oplus ", r"\circ ",
        r"\leadsto ",
        "≈", "→", r"\text{ not }", r"\mathrm{or}", r"\) \(", r"\][", " hence ", r"\anything ", r"\boxed{7}",
    )],
    (r"\cancel{6} 5", "5"),
    (r"5 \text{ (not 6)}", "5"),
    (r"\(6\) \(5\)", "5"),
    (r"\[6\]\[5\]", "5"),
    (r"5\text{ cm}", r"5\text{ m}"),
    (r"5\text{ square cm}", r"5\text{ cm}"),
    ("2003_5", "2003_4"),
    ("1011_2", "1011"),
    ("5_6", "5"),
    (r"0\le x\le 1", "[0,1)"),
    (r"x=4, y=5", "4,5"),
    # No LaTeX at all, or LaTeX that does not end: not searched for a number or a fraction.
    *[(f"{junk}7", "7") for junk in ("8._x, ", "_8, ", "f.g(8), ", "8.(x) or ", "__8__ , ", ".x, ")],
    *[(rf"{junk}\frac{{7}}{{2}}", r"\frac{7}{2}") for junk in ("!8, ", "8| ", "+[8, ", "_8 ", r"8\sum_, ", r"\log|8")],
    (r"\frac{7}{2}, 8_", r"\frac{7}{2}"),
    (r"\frac{7}{2}, (8", r"\frac{7}{2}"),
    ("__import__('os').system('true') or 7", "7"),
]  # fmt: skip


@pytest.mark.parametrize(("given_answer", "expected"), SAME)
def test_equivalent(given_answer: str, expected: str) -> None:
    assert judge(given_answer, expected) is Verdict.CORRECT


@pytest.mark.parametrize(("given_answer", "expected"), DIFFERENT)
def test_not_equivalent(given_answer: str, expected: str) -> None:
    assert judge(given_answer, expected) is Verdict.WRONG


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
    assert check_response(r"\boxed{}", "5") == Checked(Verdict.NO_ANSWER, "")
    assert check_response(r"\boxed{ }", "5") == Checked(Verdict.NO_ANSWER, "")
    assert check_response("", "5") == Checked(Verdict.NO_ANSWER, None)
    assert check_response(r"\boxed{5}", r"\boxed{5}") == Checked(Verdict.CORRECT, "5")  # a boxed reference
    assert [Checked(verdict, None).reward for verdict in Verdict] == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_answer_in_the_prompt_is_not_read() -> None:
    """Only the last box of the response counts, whatever it quotes before."""
    assert check_response(r"The answer is not \boxed{5} but \boxed{6}.", "5").verdict is Verdict.WRONG


def test_slow_comparison_is_a_timeout_and_not_a_hang() -> None:
    """A tower of powers, a factorial and deep nesting, in a process of its own.

    math-verify's limit is an exception out of a signal handler: it needs the main thread, and a callback of the garbage
    collector, which the test tools install, may swallow it.
    """
    root = Path(__file__).resolve().parents[2]
    program = (
        "from nemo_uecr.verifier import equivalence; equivalence.TIME_LIMIT = 1\n"
        "for text in ('9^{9^{9^9}}', '10000000!', '(' * 900 + '1' + ')' * 900):\n"
        "    print(equivalence.judge(text, '7').value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["timeout"] * 3


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{1}{0}", r"\frac", r"\left(", r"\begin{matrix}", "&", "_", "^", "^^", "x_", "{}", "%", "#", "\x00", "∑",
        "\\", r"\text{", "1e400000000", "nan", "inf", "None", "__import__('os')", "a=b=c", "1=2", r"\sum_{", "[1,2",
        "|x", "||", "0^0",
    ],
)  # fmt: skip
def test_nonsense_is_wrong_or_an_error_but_never_a_crash(text: str) -> None:
    assert judge(text, "7") in (Verdict.WRONG, Verdict.ERROR)


def test_missing_math_verify_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_uecr.errors import DependencyError

    monkeypatch.setitem(sys.modules, "math_verify", None)
    judge.cache_clear()
    assert judge("5", "5.0") is Verdict.CORRECT  # plain numbers need nothing
    with pytest.raises(DependencyError, match=r"needs math-verify; pip install 'nemo-uecr\[verify\]'"):
        judge(r"\frac{1}{2}", "0.5")


def test_plain_answers_load_nothing_heavy() -> None:
    root = Path(__file__).resolve().parents[2]
    program = (
        "import sys; from nemo_uecr.verifier.equivalence import check_response;"
        "check_response('\\\\boxed{1,234}', '1234'); sys.exit(any(m in sys.modules for m in ('sympy', 'math_verify')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0


def test_a_product_that_is_not_multiplied_out_has_one_verdict() -> None:
    # sympy keeps what it once found out about a product, so every one here is new to it.
    for factor in range(1000, 1200):
        assert judge(rf"\sqrt{{{factor}(0)}}\cdot {factor}", "0") is Verdict.CORRECT


def test_fractions_without_arguments_are_read_once() -> None:
    began = time.process_time()
    text = r"{\frac}{" * 40 + "1" + "}" * 40
    assert products_spelled_out(text).replace(r"\cdot ", "") == text
    assert time.process_time() - began < 5


def test_a_blank_between_digits_keeps_them_apart() -> None:
    assert judge_plain("1 2", "12") is not Verdict.CORRECT
    assert judge_plain("( 1, 2 )", "(1,2)") is Verdict.CORRECT
