"""The batch audit on a real tiny run: nothing wrong as it is, and every planted fault found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nemo_uecr.audit.batch import Intended, Lines, batch_audit, intended_batch, read_lines
from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import load_config
from nemo_uecr.telemetry.run_folder import read_run
from tests.local import tiny

Steps = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of 2 x 4 responses in two optimizer steps each, every batch saved."""
    return tiny.run(tmp_path_factory.mktemp("batch") / "run", "train.steps=3", "telemetry.save_batch_every=1")


def faults(folder: Path, change: Callable[[Steps], Steps] | None = None) -> list[tuple[int, str]]:
    lines = read_lines(folder / "metrics.jsonl")
    steps = [dict(step) for step in lines.steps]
    steps = steps if change is None else change(steps)
    batches = [(batch.step, batch.tensors) for batch in read_run(folder).batches]
    config = load_config(folder / "config.yaml", ()).config
    intended = intended_batch(config, Path(config.data.train), [step for step, _ in batches])
    numbers = batch_audit(replace(lines, steps=steps), batches, intended).numbers
    return [(each["step"], each["fault"]) for each in numbers["faults"]]


def test_a_run_as_it_is_has_no_fault(run: Path) -> None:
    assert faults(run) == []


def test_the_totals_are_sums(run: Path) -> None:
    lines = read_lines(run / "metrics.jsonl")
    config = load_config(run / "config.yaml", ()).config
    numbers = batch_audit(lines, [], intended_batch(config, Path(config.data.train), [])).numbers
    mask_tokens = sum(int(load_file(path)["mask"].sum()) for path in run.glob("batches/*.safetensors"))
    assert numbers["totals"] == {
        "prompts": 6, "generated": 24, "rewarded": 24, "in the loss": 24, "tokens in the loss": mask_tokens,
        "steps": 3, "optimizer steps": 6,
    }  # fmt: skip


def with_value(name: str, value: float) -> Callable[[Steps], Steps]:
    def change(steps: Steps) -> Steps:
        steps[1][name] = value
        return steps

    return change


@pytest.mark.parametrize(
    ("change", "step", "fault"),
    [
        (with_value("count/prompts", 1), 2, "prompts: 1, expected 2"),
        (with_value("count/unique_prompts", 1), 2, "problems: 1, expected 2"),
        (with_value("count/trajectories", 7), 2, "generated: 7, expected 8"),
        (with_value("count/rewarded", 7), 2, "rewarded: 7, expected 8"),
        (with_value("count/trained", 6), 2, "in the loss: 6, expected 8"),
        (with_value("count/valid_tokens", 1), 2, "saved batch: "),
        # a loop that counts its micro-batches as steps
        (with_value("count/global_steps", 4), 2, "global steps: 4, expected 2"),
        (with_value("count/optimizer_steps", 6), 2, "optimizer steps: 6, expected 4"),
        (lambda steps: [steps[0], steps[2]], 2, "step 2 is missing in the record"),
        (lambda steps: steps[:2], 3, "step 3 is missing in the record"),
        (lambda steps: [*steps, steps[2]], 3, "step 3 stands twice in the record"),
    ],
)
def test_a_planted_fault_is_found(run: Path, change: Callable[[Steps], Steps], step: int, fault: str) -> None:
    found = faults(run, change)
    assert any(number == step and text.startswith(fault) for number, text in found), found


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def changed_batch(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "batches" / "step-000002.safetensors"
    with safe_open(str(path), framework="pt") as file:
        header = dict(file.metadata())
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata=header)


def test_faults_of_a_saved_batch(copy: Path) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        tensors["group"][0] = 1
        tensors["mask"][3] = False

    changed_batch(copy, spoil)
    found = [text for step, text in faults(copy) if step == 2]
    assert "saved batch: groups of [3, 5] responses, 2 of them" in found
    assert "saved batch: response 3 is empty" in found
    assert any(text.startswith("saved batch: group 1 has responses to") for text in found)


def test_another_reward_than_the_record_is_a_fault(copy: Path) -> None:
    def flip(tensors: dict[str, Any]) -> None:
        tensors["task_reward"][0] = 1 - tensors["task_reward"][0]

    changed_batch(copy, flip)
    assert [text.split(" reward")[0] for step, text in faults(copy) if step == 2] == ["saved batch: mean"]


def test_a_problem_drawn_twice_and_another_order(copy: Path) -> None:
    path = copy / "batches" / "step-000002.json"
    content = json.loads(path.read_text())
    first = content["responses"][0]["problem"]
    for row in content["responses"]:
        row["problem"] = first
    path.write_text(json.dumps(content))
    found = [text for step, text in faults(copy) if step == 2]
    assert found == [
        f"saved batch: problem {first!r} was drawn twice",
        "saved batch: its problems are not those that seed and data give for this step",
    ]


def test_half_a_last_line_is_a_fault(copy: Path) -> None:
    path = copy / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-50])
    assert faults(copy) == [(3, "the record ends in half a line"), (3, "step 3 is missing in the record")]
    assert entry_point(["audit", "batch", str(copy)]) == 1


@pytest.mark.parametrize(("trained", "expected"), [(6, []), (8, [(1, "in the loss: 8, expected 6")])])
def test_truncated_responses_leave_the_loss_with_the_filter(trained: int, expected: list[tuple[int, str]]) -> None:
    """A quarter of eight responses is truncated; how many tokens the other six have is not known from the record."""
    step = {
        "step": 1, "response/truncated_share": 0.25, "response/length_mean": 5.0, "count/prompts": 2,
        "count/unique_prompts": 2, "count/trajectories": 8, "count/rewarded": 8, "count/trained": trained,
        "count/valid_tokens": 11, "count/global_steps": 1, "count/optimizer_steps": 1, "reward/task_mean": 0.5,
    }  # fmt: skip
    intended = Intended(2, 4, minibatch=8, overlong_filter=True, problems=None, order=None, steps=1, save_every=0)
    numbers = batch_audit(Lines([step], cut_off=False), [], intended).numbers
    assert [(each["step"], each["fault"]) for each in numbers["faults"]] == expected
