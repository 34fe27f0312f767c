"""The batch audit finds faults planted in a real tiny run; the efficiency audit against hand values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.audit.runs import batch_audit, efficiency_audit
from nemo_uecr.cli.main import entry_point
from nemo_uecr.config.load import dump_config, load_config
from nemo_uecr.errors import DataError
from nemo_uecr.responses.table import read_responses
from nemo_uecr.telemetry.run_folder import RunFolder
from nemo_uecr.telemetry.sinks import read_records
from tests.audit.made import audited, faults
from tests.local import tiny
from tests.responses.tables import changed

Steps = list[dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of 2 x 4 responses in two optimizer steps each, every batch saved."""
    return tiny.run(tmp_path_factory.mktemp("batch") / "run", "train.steps=3", "telemetry.save_batch_every=1")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def write_steps(folder: Path, steps: Steps) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))


def test_a_run_as_it_is_has_no_fault_and_the_totals_are_sums(run: Path) -> None:
    numbers = audited(run)
    assert numbers["faults"] == []
    mask_tokens = sum(int(read_responses(path).count_B.sum()) for path in run.glob("batches/*.parquet"))
    assert numbers["totals"] == {
        "prompts": 6, "generated": 24, "rewarded": 24, "in the loss": 24, "tokens in the loss": mask_tokens,
        "steps": 3, "optimizer steps": 6,
    }  # fmt: skip


def with_value(name: str, value: float) -> Callable[[Steps], Steps]:
    return lambda steps: [step | {name: value} if step["step"] == 2 else step for step in steps]


@pytest.mark.parametrize(
    ("change", "step", "fault"),
    [
        (with_value("count/prompts", 1), 2, "prompts: 1, expected 2"),
        (with_value("count/trajectories", 7), 2, "generated: 7, expected 8"),
        (with_value("count/trained", 6), 2, "in the loss: 6, expected 8"),
        (with_value("count/valid_tokens", 1), 2, "saved batch: "),
        # a loop that counts its micro-batches as steps
        (with_value("count/optimizer_steps", 6), 2, "optimizer steps: 6, expected 4"),
        (lambda steps: [steps[0], steps[2]], 2, "steps missing in the record: 1, 2 first"),
        (lambda steps: steps[:1], 2, "steps missing in the record: 2, 2 first"),
        (lambda steps: [*steps, steps[2]], 3, "step 3 appears twice in the record"),
    ],
)
def test_a_planted_fault_is_found(copy: Path, change: Callable[[Steps], Steps], step: int, fault: str) -> None:
    write_steps(copy, change(read_records(copy / "metrics.jsonl")[0]))
    found = faults(copy)
    assert any(number == step and text.startswith(fault) for number, text in found), found


def test_faults_of_a_saved_batch(copy: Path) -> None:
    path = copy / "batches" / "step-000002.parquet"
    table = read_responses(path)
    group, sampled = table.column("group"), table.column("sampled")
    changed(path, group=["1", *group[1:]], sampled=[*sampled[:3], [False] * len(sampled[3]), *sampled[4:]])
    found = [text for step, text in faults(copy) if step == 2]
    assert "saved batch: groups of [3, 5] responses, 2 of them" in found
    assert "saved batch: response 3 is empty" in found
    assert any(text.startswith("saved batch: group 1 has responses to") for text in found)


def test_saved_batches_of_an_earlier_version_are_not_taken_for_missing_ones(copy: Path) -> None:
    path = copy / "batches" / "step-000001.parquet"
    path.rename(path.with_suffix(".safetensors"))  # as in a run that a later version continued
    with pytest.raises(DataError, match=r"step-000001\.safetensors has a format of version 0\.3\.0 or earlier"):
        audited(copy)


def test_a_step_in_which_a_pass_over_the_file_ends_may_draw_a_problem_twice(tmp_path: Path) -> None:
    three = tmp_path / "three.jsonl"
    three.write_text("".join(tiny.assets().problems.read_text().splitlines(keepends=True)[:3]))
    changes = ("train.steps=2", "run.seed=1", f"data.train={three}", "telemetry.save_batch_every=1")
    folder = tiny.run(tmp_path / "run", *changes)
    assert [step["count/unique_prompts"] for step in read_records(folder / "metrics.jsonl")[0]] == [2, 1]
    assert audited(folder)["faults"] == batch_audit(folder, tmp_path / "elsewhere").numbers["faults"] == []


def test_dropped_prompts_are_not_in_the_order_of_the_data(tmp_path: Path) -> None:
    rows = [{"id": str(i), "question": f"{i}{' 1 2 3' * (i % 2)}", "answer": str(i)} for i in range(8)]
    train = tmp_path / "train.jsonl"
    train.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    limit = ("data.long_prompts=drop", "data.max_prompt_tokens=14")
    folder = tiny.run(tmp_path / "run", "train.steps=2", f"data.train={train}", *limit, "telemetry.save_batch_every=1")
    found = audited(folder)
    assert (found["faults"], found["prompt_order_checked"]) == ([], True)


def test_problems_in_another_order(copy: Path) -> None:
    path = copy / "batches" / "step-000002.parquet"
    problems = read_responses(path).column("problem")
    changed(path, problem=[problems[0]] * len(problems))
    assert [text for step, text in faults(copy) if step == 2] == [
        "saved batch: its problems are not those that seed and data give for this step",
    ]


def test_a_report_says_after_which_step_an_audit_was_made(copy: Path) -> None:
    for name in ("batch", "efficiency"):
        assert entry_point(["audit", name, str(copy)]) == 0
        section = json.loads((copy / "audits" / name / "section.json").read_text())
        assert section["title"].endswith(", after step 3")


def test_an_incomplete_last_line_is_a_fault(copy: Path) -> None:
    path = copy / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-50])
    assert faults(copy) == [
        (3, "the last line of the record is incomplete"),
        (3, "steps missing in the record: 1, 3 first"),
    ]
    assert entry_point(["audit", "batch", str(copy)]) == 1


def test_what_leaves_the_loss_on_purpose_is_no_fault(copy: Path) -> None:
    """A quarter of eight responses is truncated and filtered; or a method masks all tokens."""
    step = {
        "step": 1, "response/truncated_share": 0.25, "response/length_mean": 5.0, "count/prompts": 2,
        "count/unique_prompts": 2, "count/trajectories": 8, "count/rewarded": 8, "count/trained": 6,
        "count/valid_tokens": 11, "count/global_steps": 1, "count/optimizer_steps": 2, "reward/task_mean": 0.5,
    }  # fmt: skip
    changes = ("rollout.overlong_filter=true", "train.steps=1", "telemetry.save_batch_every=0")
    (copy / "config.yaml").write_text(dump_config(load_config(copy / "config.yaml", changes).config))
    shutil.rmtree(copy / "batches")
    masked = {"advantage/trained_share": 0.0, "count/trained": 0, "count/valid_tokens": 0}
    for change, expected in (({}, []), ({"count/trained": 8}, ["in the loss: 8, expected 6"]), (masked, [])):
        write_steps(copy, [step | change])
        assert [text for _, text in faults(copy)] == expected


# Efficiency


def step(number: int, **seconds: float) -> dict[str, float]:
    """A step of 10 responses of 20 tokens, with times of its phases."""
    times = {f"time/{name}_s": value for name, value in seconds.items()}
    counted = {"step": number, "response/length_mean": 20.0, "count/trajectories": 10.0, "memory/peak_rss_mb": 100.0}
    return counted | times


#: 200 tokens a step. Training time: 10 - 4 = 6 s and 8 s; the teacher takes 1 + 2 of it.
UECR = [
    step(1, rollout=3, verify=0.5, score_teacher=1, update=1, evaluate=4, step=10, save=0.5),
    step(2, rollout=3, verify=0.5, score_teacher=2, update=2, step=8) | {"memory/peak_rss_mb": 120.0},
]
#: 400 tokens in 4 + 4 s; no teacher.
GRPO = [step(1, rollout=2, update=1, step=4), step(2, rollout=2, update=1, step=4)]


def costed(label: str, steps: Steps) -> RunFolder:
    config = {"method": {"name": "grpo" if label == "b" else "uecr"}}
    return RunFolder(Path(label), label, config, {}, {}, steps, [], {}, None, ())


def test_hand_values() -> None:
    found = efficiency_audit([costed("a", UECR), costed("b", GRPO)], "b").numbers["runs"]
    cost = found["a"]
    expected = {
        "training_s": 14.0, "wall_clock_s": 18.5, "evaluation_s": 4.0, "rollout_s": 6.0, "scorer_s": 3.0,
        "tokens": 400.0, "other_s": 14 - (6 + 1 + 3 + 3), "tokens_per_s": 400 / 14, "rollout_tokens_per_s": 400 / 6,
        "scorer_overhead": 3 / 11,
    }  # fmt: skip
    assert {name: cost[name] for name in expected} == pytest.approx(expected)
    assert cost["tokens_per_s_by_step"]["value"].tolist() == pytest.approx([200 / 6, 200 / 8])
    # 14 s against 8 s for as many tokens and steps
    assert cost["overhead_against_baseline"] == pytest.approx({"per_token": 14 / 8 - 1, "per_step": 14 / 8 - 1})
    assert cost["step_s_quantiles"]["0.5"] == 7.0
    assert cost["peak_memory_mb"] == {"process": 120.0, "gpu": None}
    absent = ("scorer_s", "scorer_overhead", "overhead_against_baseline")  # what GRPO does not have
    assert {name: found["b"][name] for name in absent} == dict.fromkeys(absent)
    assert "score teacher" not in found["b"]["phase_s"]
