"""The batch audit on a real tiny run: nothing wrong as it is, and every planted fault found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nemo_uecr.audit.batch_facts import Intended, Lines, _lost_batches, batch_audit, read_lines
from nemo_uecr.cli.audit import intended_batch
from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import load_config
from nemo_uecr.errors import DataError
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
    numbers = batch_audit(
        replace(lines, steps=steps), batches, intended_batch(config, [step for step, _ in batches])
    ).numbers
    return [(each["step"], each["fault"]) for each in numbers["faults"]]


def test_a_run_as_it_is_has_no_fault(run: Path) -> None:
    assert faults(run) == []


def test_the_totals_are_sums(run: Path) -> None:
    lines = read_lines(run / "metrics.jsonl")
    config = load_config(run / "config.yaml", ()).config
    numbers = batch_audit(lines, [], intended_batch(config, [])).numbers
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count/trajectories", None), ("count/optimizer_steps", None), ("response/length_mean", None),
        ("count/valid_tokens", None), ("reward/task_mean", None), ("count/trajectories", 10**400),
        ("count/rewarded", -1), ("response/length_mean", 1e308), ("step", 0), ("step", 10**400), ("step", True),
    ],
)  # fmt: skip
def test_a_record_that_is_no_record_is_one_line(run: Path, name: str, value: float | None) -> None:
    def change(steps: Steps) -> Steps:
        steps[1].pop(name)
        return [steps[0], steps[1] | ({} if value is None else {name: value}), steps[2]]

    with pytest.raises(DataError, match=rf"(step|record) 2 has (no )?{name}.*; expected a .*number"):
        faults(run, change)


def test_a_damaged_step_number_is_one_gap(run: Path) -> None:
    found = faults(run, lambda steps: [*steps[:2], steps[2] | {"step": 10**12}])
    assert (3, f"steps 3 to {10**12 - 1} are missing in the record") in found
    assert len(found) < 10


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


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("group", lambda x: x[:, None], "group is torch.int64 of shape (8, 1); expected int64 [B]"),
        ("group", lambda x: x.bfloat16(), "group is torch.bfloat16 of shape (8,)"),
        ("mask", lambda x: x[:, 0], "mask of shape (8,) is no mask [8, T]; expected bool"),
        ("mask", lambda x: x.float() * 0.5, "is no mask [8, T]"),
        ("mask", lambda x: x[:5], "is no mask [8, T]"),
        ("task_reward", lambda x: x.to(torch.complex64), "task_reward is torch.complex64 of shape (8,)"),
        ("task_reward", lambda x: x[:1], "task_reward is torch.float32 of shape (1,); expected float [8]"),
    ],
)
def test_a_saved_batch_of_another_shape_or_kind(
    copy: Path, name: str, change: Callable[[Any], Any], complaint: str
) -> None:
    changed_batch(copy, lambda tensors: tensors.update({name: change(tensors[name]).contiguous()}))
    with pytest.raises(DataError, match=re.escape(complaint)):
        faults(copy)


def test_a_last_mini_batch_that_is_smaller_is_a_step() -> None:
    """8 responses in mini-batches of 3: 3 + 3 + 2."""
    intended = Intended(2, 4, minibatch=3, overlong_filter=False, problems=None, order=None, steps=1, save_every=0)
    assert intended.optimizer_steps == 3


def test_a_saved_batch_that_was_deleted_is_a_fault(copy: Path) -> None:
    for path in (copy / "batches").glob("step-000002.*"):
        path.unlink()
    assert faults(copy) == [(2, "saved batch: it is gone")]


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


@pytest.mark.parametrize(("keep", "expected"), [(1, [(3, "the record ends in half a line")]), (2, [])])
def test_half_a_last_line_is_a_fault(copy: Path, keep: int, expected: list[tuple[int, str]]) -> None:
    """Half of step 3 is; step 3 without its line break is all there."""
    path = copy / "metrics.jsonl"
    first, second, third, end = path.read_bytes().split(b"\n")
    assert end == b""
    path.write_bytes(b"\n".join([first, second, third[: len(third) * keep // 2]]))
    missing = [(3, "step 3 is missing in the record")]
    found = faults(copy)
    assert found == (expected + missing if expected else [])
    assert entry_point(["audit", "batch", str(copy)]) == int(bool(expected))
    numbers = json.loads((copy / "audits" / "batch" / "numbers.json").read_text())["numbers"]
    assert [each["fault"] for each in numbers["faults"]] == [text for _, text in found]


def test_half_a_line_within_is_refused(copy: Path) -> None:
    path = copy / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[10:])
    with pytest.raises(DataError, match=r"metrics\.jsonl:1: malformed JSON"):
        read_lines(path)


def test_the_order_within_a_step_counts(copy: Path) -> None:
    """The same two problems as drawn, each with the other's responses."""
    path = copy / "batches" / "step-000002.json"
    content = json.loads(path.read_text())
    one, two = dict.fromkeys(row["problem"] for row in content["responses"])
    for row in content["responses"]:
        row["problem"] = two if row["problem"] == one else one
    path.write_text(json.dumps(content))
    assert faults(copy) == [(2, "saved batch: its problems are not those that seed and data give for this step")]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda rows: rows[:-1], "has 7 responses; expected the 8 of the batch"),
        (lambda rows: [{**rows[0], "problem": 3}, *rows[1:]], "response 0 has no text 'problem'"),
        (lambda rows: {"row": 0}, "has no list of responses"),
    ],
)
def test_texts_that_are_not_those_of_the_batch(copy: Path, change: Callable[[Steps], object], complaint: str) -> None:
    path = copy / "batches" / "step-000002.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({"responses": change(content["responses"])}))
    with pytest.raises(DataError, match=complaint):
        faults(copy)


def test_the_first_batch_is_missed_whatever_the_interval() -> None:
    steps = [{"step": number} for number in range(1, 6)]
    gone = "saved batch: it is gone"
    assert list(_lost_batches(steps, {2}, 2)) == [(1, gone), (4, gone)]
    assert list(_lost_batches(steps, set(), 0)) == []


@pytest.mark.parametrize(("trained", "expected"), [(6, []), (8, [(1, "in the loss: 8, expected 6")])])
def test_truncated_responses_leave_the_loss_with_the_filter(trained: int, expected: list[tuple[int, str]]) -> None:
    """A quarter of eight responses is truncated; how many tokens the other six have is not known from the record."""
    step = {
        "step": 1, "response/truncated_share": 0.25, "response/length_mean": 5.0, "count/prompts": 2,
        "count/unique_prompts": 2, "count/trajectories": 8, "count/rewarded": 8, "count/trained": trained,
        "count/valid_tokens": 11, "count/global_steps": 1, "count/optimizer_steps": 1,
    }  # fmt: skip
    intended = Intended(2, 4, minibatch=8, overlong_filter=True, problems=None, order=None, steps=1, save_every=0)
    numbers = batch_audit(Lines([step], cut_off=False), [], intended).numbers
    assert [(each["step"], each["fault"]) for each in numbers["faults"]] == expected


def test_without_a_step_there_is_nothing_to_audit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no step"):
        read_lines(tmp_path / "metrics.jsonl")
