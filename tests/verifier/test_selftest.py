"""The verifier's own test."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import comparison_pool
from tools.verifier_selftest import CHANGED, Trial, run_trials, trials


def test_forms_of_an_integer_and_of_a_fraction() -> None:
    integer = {trial.form: trial.response for trial in trials("p", "1234")}
    assert r"\boxed{1{,}234}" in integer["thousands"]
    assert r"\boxed{1233 + 1}" in integer["as a sum"]
    assert r"\boxed{1235}" in integer["another digit"]
    fraction = {trial.form: trial.response for trial in trials("p", r"-\frac{1}{4}")}
    assert r"\boxed{-\frac{3}{12}}" in fraction["unreduced"]
    assert r"\boxed{-1/4}" in fraction["slash"]


def test_changed_forms_of_every_structure_must_fail() -> None:
    """And the rewritten ones must pass."""
    answers = [
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}", r"(3,4]",
        r"\left( 3, \frac{\pi}{2} \right)", "60t", "52_8", "-7", r"5.4 \text{ cents}", r"864 \mbox{ inches}^2",
        r"145^\circ", r"-\frac{1}{4}", "5x - 7y + 11z + 4 = 0", r"x \in [-2,7]",
        r"3 \pm 2 \sqrt{2}", r"(-\infty, 2) \cup (3, \infty)",
    ]  # fmt: skip
    made = [trial for answer in answers for trial in trials("p", answer)]
    made_forms, every_form = {trial.form for trial in made}, {form for form, *_ in CHANGED}
    assert every_form - made_forms == set()
    assert made_forms >= {"array", "bmatrix", "rows changed", "transposed", "a row less", "one row"}
    with comparison_pool(2) as pool:
        assert [(trial.answer, trial.form, got) for trial, got in run_trials(made, pool)] == []


def test_usual_answers_pass_and_a_wrong_expectation_is_listed() -> None:
    made = [trial for answer in ("25", r"\frac{3}{8}", r"2\sqrt{3}", "(1,2)") for trial in trials("p", answer)]
    wrong = Trial("q", "planted", "5", r"\boxed{6}", Verdict.CORRECT)
    with comparison_pool(2) as pool:
        failures = run_trials([*made, wrong], pool)
    assert [(trial.form, got) for trial, got in failures] == [("planted", Verdict.WRONG)]
