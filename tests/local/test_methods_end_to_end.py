"""A method of each family through the real loop by one key, the metrics against their table, and learning."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
import torch

from nemo_uecr.core.methods import METHODS
from nemo_uecr.files import file_sha256
from nemo_uecr.telemetry.metric_table import METRICS
from tests.data.made import deepmath_row, prepare_folder, write_benchmark, write_jsonl
from tests.local import tiny
from tests.local.tiny import DIGITS, LIKED, metrics, records
from tests.responses import tables

#: Metrics that these runs cannot have, and when they appear.
CONDITIONAL = {
    "memory/peak_gpu_mb": "on a GPU",
    **{name: "with several teachers" for name in METRICS if name.startswith("teacher/NAME/")},
    **{name: "with a wider teacher" for name in METRICS if name.startswith("teacher/dropped_mass")},
    **{name: "with several rewards" for name in METRICS if name.startswith("reward/NAME/")},
    "policy/rollout_gap": "with rollout.engine=vllm",
    **dict.fromkeys(("policy/behind_kl", "policy/lag"), "with rollout.lag"),
    **{name: "with an environment" for name in METRICS if name.startswith("turns/")},
    **{name: "told to the clients only" for name in METRICS if name.startswith("evaluation/")},
    **{name: "where the teacher is that sure of a token" for name in METRICS if name.endswith(("_e1", "_e2"))},
}
#: The paper's method, no teacher, two surrogates, a carried state, weights of the ratio to the teacher, turns, and a
#: mask of the loss.
FAMILIES = ("uecr", "grpo", "grpo_plus_opd", "uecr_trust", "distilled_rl", "atod", "opsa")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> dict[str, Path]:
    """One run of two steps for each family; nothing but the key differs."""
    root = tmp_path_factory.mktemp("methods")
    others = {name: tiny.run(root / name, *tiny.every(), f"method.name={name}") for name in FAMILIES[1:]}
    return {"uecr": trained, **others}


@pytest.mark.parametrize("name", FAMILIES)
def test_method_runs_and_its_identities_hold(runs: dict[str, Path], name: str) -> None:
    found = metrics(runs[name])
    assert [record["step"] for record in found] == [1, 2]
    for record in found:
        assert record["policy/first_ratio_error"] == 0.0  # bitwise on one thread
        assert record["policy/grad_norm"] > 0
        assert record["count/trajectories"] == record["count/rewarded"] == 8
        assert record["count/trained"] == 8 or name == "opsa"  # which may leave a response without a token
        assert record["identity/finite"] == 0
        assert ("teacher/gap_mean" in record) == METHODS[name].needs_teacher()
        assert ("teacher/entropy_mean" in record) == ("teacher_entropy" in METHODS[name].reads)
        for identity in METHODS[name].identities:
            metric = {"budget": "budget_error", "decomposition": "decomposition_error"}.get(identity, identity)
            assert record[f"identity/{metric}"] <= 1e-6


def test_methods_share_the_rollout_and_differ_in_the_advantage(runs: dict[str, Path]) -> None:
    """Before the first update the student is the same, so the batch is; what is made of it is each method's own."""
    batches = {name: tiny.tensors(folder) for name, folder in runs.items()}
    for tensors in batches.values():
        assert torch.equal(tensors["token_ids"], batches["uecr"]["token_ids"])
        assert torch.equal(tensors["reward"], batches["uecr"]["reward"])
    first = {name: metrics(folder)[0] for name, folder in runs.items()}
    fingerprints = {
        (record["advantage/std"], record["policy/loss"], record["policy/grad_norm"]) for record in first.values()
    }
    # These groups are mixed and speak against the teacher.
    assert first["uecr_trust"]["trust/kappa"] == 0
    assert len(fingerprints) == len(FAMILIES) - 1  # and uecr_trust is GRPO


def test_every_metric_is_in_the_table_and_every_entry_is_emitted(runs: dict[str, Path], tmp_path: Path) -> None:
    emitted = {name for folder in runs.values() for record in records(folder / "metrics.jsonl") for name in record}
    emitted.discard("step")
    assert emitted <= METRICS.keys()
    never = METRICS.keys() - emitted - CONDITIONAL.keys()
    assert not never, f"in the table but never emitted: {sorted(never)}"


def test_atod_takes_turns(runs: dict[str, Path], tmp_path: Path) -> None:
    """With a separator that every response has, turns differ in weight; without, the weight is constant 0.75."""
    one = runs["atod"]
    turns = ("method.name=atod", "method.turn_separator='{'")
    two = tiny.run(tmp_path / "two", *turns, "telemetry.save_batch_every=1", "train.steps=1")
    assert metrics(one)[0]["ecr/weight_min"] == metrics(one)[0]["ecr/weight_max"] == 0.75
    assert metrics(two)[0]["ecr/weight_min"] < metrics(two)[0]["ecr/weight_max"]
    segments = tiny.tensors(two)["turn"]
    # \boxed{ ends turn 0; what follows is turn 1
    assert segments.unique().tolist()[:2] == [0, 1]


def test_evaluation_record_is_the_mean_of_its_samples(runs: dict[str, Path]) -> None:
    record = records(runs["uecr"] / "evaluation.jsonl")[-1]
    samples = tables.records(runs["uecr"] / "evaluations" / "step-000002.parquet")
    assert len(samples) == 12  # 6 problems, 2 samples
    share = sum(sample["verdict"] == "correct" for sample in samples) / 12
    assert record["sets"]["a"]["avg"] == pytest.approx(share)
    assert record["average"]["avg"] == pytest.approx(share)
    assert record["sets"]["a"]["low"] <= share <= record["sets"]["a"]["high"]


def test_a_prepared_folder_is_trained_on(tmp_path: Path) -> None:
    rows = [deepmath_row(str(digit), str(digit)) for digit in range(DIGITS)]
    source = write_jsonl(tmp_path / "source.jsonl", rows)
    prepared = prepare_folder(source, tmp_path / "data", write_benchmark(tmp_path))
    folder = tiny.run(tmp_path / "run", f"data.train={prepared}", "train.steps=1")
    record = json.loads((folder / "provenance.json").read_text())
    assert record["sha256"]["train"] == file_sha256(prepared / "train.jsonl")


def test_training_learns(tmp_path: Path) -> None:
    """A bandit: of four digits one is right, and the student begins at chance, 25%."""
    rows = [{"id": str(i), "question": str(i), "answer": str(LIKED)} for i in range(4)]
    problems = write_jsonl(tmp_path / "bandit.jsonl", rows)
    folder = tiny.run(
        tmp_path / "run",
        f"data.train={problems}",
        "train.steps=20",
        "rollout.prompts_per_step=4",
        "rollout.responses_per_prompt=8",
        "rollout.microbatch_responses=32",
        "rollout.temperature=1.0",
        "rollout.top_k=0",
        "rollout.top_p=1.0",
        "train.minibatch_responses=32",
        "train.microbatch_responses=32",
        "train.learning_rate=0.003",
    )
    reward = [record["reward/task_mean"] for record in metrics(folder)]
    start, end = statistics.fmean(reward[:4]), statistics.fmean(reward[-4:])
    assert start < 0.4, reward
    assert end > 0.7, reward
