"""The verifier's own test."""

from __future__ import annotations

import pytest

pytest.importorskip("math_verify")

from nemo_uecr.verifier.extract import Verdict
from nemo_uecr.verifier.pool import comparison_pool
from nemo_uecr.verifier.selftest import Trial, run_trials, trials


def test_forms_of_an_integer_and_of_a_fraction() -> None:
    integer = {trial.form: trial.response for trial in trials("p", "1234")}
    assert r"\boxed{1{,}234}" in integer["thousands"]
    assert r"\boxed{1233 + 1}" in integer["as a sum"]
    fraction = {trial.form: trial.response for trial in trials("p", r"-\frac{1}{4}")}
    assert r"\boxed{-\frac{3}{12}}" in fraction["unreduced"]
    assert r"\boxed{-1/4}" in fraction["slash"]


def test_usual_answers_pass_and_a_wrong_expectation_is_listed() -> None:
    made = [trial for answer in ("25", r"\frac{3}{8}", r"2\sqrt{3}", "(1,2)") for trial in trials("p", answer)]
    wrong = Trial("q", "planted", "5", r"\boxed{6}", Verdict.CORRECT)
    with comparison_pool(2) as pool:
        failures = run_trials([*made, wrong], pool)
    assert [(trial.form, got) for trial, got in failures] == [("planted", Verdict.WRONG)]
