"""The methods by name: the paper's fourteen, and the truth of what each declares."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.core import methods
from nemo_uecr.core.invariants import IDENTITIES, check_identities
from nemo_uecr.core.methods import METHODS, defined
from nemo_uecr.core.records import Advantages, Settings
from nemo_uecr.errors import ConfigError, ScoreError
from nemo_uecr.method_registry import ADDED, GROUP, PAPER, TEACHER, Entry, by_name
from tests.core.batches import CONSERVING, ECR_FAMILY, SETTINGS, mixed_responses, padded, random_responses

NAMES = {
    "grpo",
    "pg_opd",
    "grpo_plus_opd",
    "distilled_rl",
    "atod",
    "separate_norm",
    "puu",
    "uecr",
    "ecr_no_entropy",
    "ecr_no_projection",
    "ecr_full_advantage",
    "ecr_alpha_zero",
    "ecr_no_gap",
    "shuffled_entropy",
}
NORM = {"std_floor", "sample_std"}
FULL = NORM | {"alpha", "rho", "tau_delta", "tau_entropy"}
SETTINGS_OF = {
    "grpo": NORM,
    "pg_opd": set(),
    "grpo_plus_opd": NORM | {"opd_coef"},
    "distilled_rl": NORM,
    "atod": NORM | {"step"},
    "separate_norm": NORM | {"alpha"},
    "puu": NORM | {"alpha"},
    "uecr": FULL,
    "ecr_no_entropy": FULL - {"tau_entropy"},
    "ecr_no_projection": FULL,
    "ecr_full_advantage": FULL,
    "ecr_alpha_zero": FULL - {"alpha"},
    "ecr_no_gap": FULL - {"tau_delta"},
    "shuffled_entropy": FULL | {"seed"},
}
#: Another legal value of each setting, far enough from SETTINGS to change a result.
OTHER: dict[str, Any] = {
    "alpha": 0.4,
    "rho": 0.2,
    "tau_delta": 3.0,
    "tau_entropy": 3.0,
    "std_floor": 7.0,
    "sample_std": True,
    "opd_coef": 0.5,
    "step": 70,
    "seed": 12345,
}
#: The loss, not the advantage, multiplies the second surrogate by this.
USED_BY_THE_LOSS = {"opd_coef"}


def test_the_paper_has_exactly_these_fourteen_and_others_are_added_apart() -> None:
    assert {entry.name for entry in PAPER} == NAMES
    assert list(METHODS) == [entry.name for entry in (*PAPER, *ADDED)]
    assert all(method.name == name for name, method in METHODS.items())


@pytest.mark.parametrize("name", sorted(NAMES))
def test_declared_settings(name: str) -> None:
    assert METHODS[name].settings == SETTINGS_OF[name]
    assert METHODS[name].settings <= set(vars(Settings()))


@pytest.mark.parametrize("key", sorted(OTHER))
@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_setting_matters_exactly_where_it_is_declared(name: str, key: str) -> None:
    batch = padded(mixed_responses(1, (4, 3), 12))
    method = METHODS[name]
    before = method.compute(batch, SETTINGS, detail=True).named_tensors()
    after = method.compute(batch, replace(SETTINGS, **{key: OTHER[key]}), detail=True).named_tensors()
    same = before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)
    assert same == (key not in method.settings - USED_BY_THE_LOSS)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_missing_setting_is_named_with_its_method(name: str) -> None:
    batch = padded(mixed_responses(1))
    for key in sorted(METHODS[name].settings):
        with pytest.raises(ConfigError, match=rf"method {name} needs {key}, which was not given; set method\.{key}"):
            METHODS[name].compute(batch, replace(SETTINGS, **{key: None}))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_settings_that_are_not_declared_may_be_missing(name: str) -> None:
    batch = padded(mixed_responses(1))
    own = Settings(**{key: getattr(SETTINGS, key) for key in METHODS[name].settings})
    expected = METHODS[name].compute(batch, SETTINGS).advantage_BT
    assert torch.equal(METHODS[name].compute(batch, own).advantage_BT, expected)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_declared_inputs(name: str) -> None:
    method = METHODS[name]
    expected: set[str] = set()
    if name != "grpo":
        expected.add("teacher_logp")
    if name in ECR_FAMILY and name != "ecr_no_entropy":
        expected.add("teacher_entropy")
    assert method.inputs == expected
    assert method.needs_teacher == (name != "grpo")


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_input_is_needed_exactly_where_it_is_declared(name: str) -> None:
    method, batch = METHODS[name], padded(random_responses(2))
    expected = method.compute(batch, SETTINGS).advantage_BT
    for field in ("teacher_logp", "teacher_entropy"):
        without = replace(batch, **{f"{field}_BT": None})
        if field in method.inputs:
            with pytest.raises(ScoreError, match=f"no {field};"):
                method.compute(without, SETTINGS)
        else:
            assert torch.equal(method.compute(without, SETTINGS).advantage_BT, expected)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_declared_identities(name: str) -> None:
    """Conservation, bound and sign for the six; PUU's decomposition where A^U exists; log weights for one."""
    method = METHODS[name]
    expected = {"finite"}
    if name in ECR_FAMILY or name == "puu":
        expected.add("decomposition")
    if name in CONSERVING:
        expected |= {"budget", "residual_bound", "sign_kept"}
    if name == "distilled_rl":
        expected.add("log_weight")
    assert set(method.identities) == expected
    assert set(method.monitored) <= set(IDENTITIES)
    assert not set(method.monitored) & set(method.identities)
    if name == "ecr_no_projection":
        assert "budget" in method.monitored, "logged, never failed"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_method_states_equation_and_source(name: str) -> None:
    assert METHODS[name].equation.strip()
    assert "\n" not in METHODS[name].equation
    assert METHODS[name].provenance.strip()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (Entry("mine", "mine", GROUP, TEACHER), "there is no core/methods/mine.py, which its line"),
        (Entry("mine", "grpo", GROUP, TEACHER), r"core/methods/grpo.py does not define it; expected MINE = Method\("),
    ],
)
def test_a_line_without_its_method_is_said_in_one_line(entry: Entry, said: str) -> None:
    with pytest.raises(ConfigError, match=f"method mine: {said}"):
        defined(entry)


@pytest.fixture
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are methods' files too."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    return tmp_path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("def f(:\n", " line 5: SyntaxError: invalid syntax"),
        ("if True:\nx = 1\n", " line 6: IndentationError: expected an indented block"),
        ("MINE = Method(\n", " line 5: SyntaxError: '(' was never closed"),
        ("MINE = MethodX()\n", " line 5: NameError: name 'MethodX' is not defined"),
        ("import nowhere\n", " line 5: ModuleNotFoundError: No module named 'nowhere'"),
        ("import json\n\njson.loads('{')\n", " line 7: JSONDecodeError: Expecting property name"),
        ("raise ValueError('one\\ntwo')\n", " line 5: ValueError: one;"),
        ("raise type('Own', (Exception,), {})\n", " line 5: Own: Own;"),
        ("\0\n", ""),  # what Python says of it differs from version to version
    ],
)
def test_a_file_that_cannot_be_imported_is_said_in_one_line(own_files: Path, content: str, said: str) -> None:
    """With file, line and Python's message."""
    opening = '"""Mine."""\n\nfrom nemo_uecr.core.methods.base import Method\n\n'
    (own_files / "mine.py").write_text(opening + content, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        defined(Entry("mine", "mine", GROUP, TEACHER))
    assert str(error.value).startswith(f"method mine: core/methods/mine.py{said}")
    assert str(error.value).endswith("; expected a file that Python can import")
    assert "\n" not in str(error.value)


def test_the_file_that_is_no_python_is_the_one_that_is_named(own_files: Path) -> None:
    """The method's file is sound and imports another one of its author's."""
    (own_files / "mine.py").write_text("from nemo_uecr.core.methods import helper\n", encoding="utf-8")
    (own_files / "helper.py").write_text("x = = 1\n", encoding="utf-8")
    said = f"method mine: {own_files / 'helper.py'} line 1: SyntaxError: invalid syntax; expected"
    with pytest.raises(ConfigError, match=re.escape(said)):
        defined(Entry("mine", "mine", GROUP, TEACHER))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"scores": frozenset({"teacher_lopg"})},
            r"the scores \['teacher_lopg'\]; expected a frozenset of initial_logp",
        ),
        ({"settings": GROUP | {"alhpa"}}, r"the settings \['alhpa'\]; expected a frozenset of alpha, opd_coef, "),
        ({"settings": "alpha"}, "the settings 'alpha'; expected a frozenset of alpha, "),
        ({"parameters": {"mix": 0.5}}, r"0.5 for parameter mix; expected Parameter\(default, low, high\)"),
    ],
)
def test_a_line_that_says_what_nothing_reads_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"method mine: its line has {said}"):
        Entry(**{"name": "mine", "file": "mine", "settings": GROUP, "scores": TEACHER, **changed})


def test_two_lines_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"method mine: two lines of method_registry\.py have this name"):
        by_name((Entry("mine", "mine", GROUP, TEACHER), Entry("mine", "other", GROUP, TEACHER)))


@pytest.mark.parametrize(
    ("name", "result", "said"),
    [
        ("grpo", lambda found: None, "returned NoneType; expected core.records.Advantages"),
        (
            "grpo",
            lambda found: replace(found, advantage_BT=found.advantage_task_B),
            r"advantage of shape \[4\] and torch.float32; expected \[4, 10\]",
        ),
        (
            "grpo",
            lambda found: replace(found, advantage_BT=found.advantage_BT.double()),
            r"advantage of shape \[4, 10\] and torch.float64; expected \[4, 10\] and torch.float32",
        ),
        (
            "grpo_plus_opd",
            lambda found: replace(found, advantage_opd_BT=found.advantage_task_B),
            r"advantage_opd of shape \[4\]",
        ),
        (
            "grpo",
            lambda found: replace(found, advantage_opd_BT=found.advantage_BT),
            "returned advantage_opd, which opd_coef multiplies in the loss; add opd_coef to the settings in its line",
        ),
    ],
)
def test_a_result_that_would_train_as_something_else_is_refused(
    name: str, result: Callable[[Advantages], Any], said: str
) -> None:
    own, batch = METHODS[name], padded(mixed_responses(1, (4,), 12), torch.float32)
    wrong = replace(own, advantages=lambda *given: result(own.advantages(*given)))
    with pytest.raises(ConfigError, match=f"method {name} .*{said}"):
        wrong.compute(batch, SETTINGS)


def test_an_identity_that_does_not_exist_is_named() -> None:
    batch = padded(mixed_responses(31), torch.float32)
    misspelt = replace(METHODS["grpo"], identities=("finit",))
    with pytest.raises(ConfigError, match="method grpo names the identity 'finit'; expected finite, decomposition"):
        check_identities(misspelt, batch, SETTINGS, METHODS["grpo"].compute(batch, SETTINGS), {})
