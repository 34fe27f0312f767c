"""Whole runs that take another minute each: data parallelism, a checkpoint that is continued, and vLLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nemo_uecr.conversion.reading import read_weights
from nemo_uecr.errors import CheckpointError
from tests.nemo.inside.launched import make_benchmarks
from tests.nemo.inside.workers import parts, world
from tests.nemo.inside.workers.isolated import ROOT, isolated, needs_megatron
from tests.nemo.inside.workers.test_loop import SAVING
from tests.responses.tables import tensors_of

pytestmark = [needs_megatron, pytest.mark.slow]
SECONDS = 900
VLLM = ROOT / ".venv-nemo-vllm" / "bin" / "python"


def check_steps(run: Any, steps: tuple[int, ...]) -> None:
    for step in steps:
        assert run["logged"]["train/count/trained"][step] == 8
        assert 0 < run["logged"]["train/grad_norm"][step] < float("inf")
        assert run["logged"]["train/policy/first_ratio_error"][step] < 0.02


def check_teacher(run: Any, folder: Path) -> None:
    """Its scores of the first step are the definition's, within what sixteen bits give."""
    errors = world.errors_of_batch(run["batches"][1], folder, "teacher")
    for name, (ours, transformers) in errors.items():
        assert ours <= 2 * transformers + 1e-5, name


def test_two_data_parallel_ranks_train(tmp_path: Path) -> None:
    """Megatron's distributed optimizer has half of its state on each rank; a refit reads whole new weights."""
    run = isolated(parts.run, tmp_path, 2, [], folder=tmp_path, seconds=SECONDS, driver=True)
    check_steps(run, (1, 2))
    assert run["logged"]["train/token_mult_prob_error"][2] < 1.1


def test_two_pipeline_stages_train(tmp_path: Path) -> None:
    """Only the last stage divides by the temperature, masks the padding and scores."""
    run = isolated(
        parts.run,
        tmp_path,
        2,
        ["policy.megatron_cfg.pipeline_model_parallel_size=2"],
        folder=tmp_path,
        seconds=SECONDS,
        driver=True,
    )
    check_steps(run, (1, 2))
    assert run["logged"]["train/token_mult_prob_error"][2] < 1.1


def test_a_teacher_on_a_gpu_of_its_own_scores(tmp_path: Path) -> None:
    changes = ["++uecr.teacher.dedicated_gpus=1"]
    run = isolated(parts.run, tmp_path, 2, changes, folder=tmp_path, seconds=SECONDS, driver=True)
    check_steps(run, (1, 2))
    check_teacher(run, tmp_path)


def test_mixtures_over_two_expert_ranks_replay_what_the_generator_chose(tmp_path: Path) -> None:
    """Each rank holds half of both models' experts; scoring and training take the generator's, the teacher its own.

    A checkpoint of both ranks becomes the model that generated the second step's responses, bit for bit.
    """
    changes = [
        *SAVING,
        "policy.megatron_cfg.expert_model_parallel_size=2",
        "++uecr.teacher.megatron_cfg.expert_model_parallel_size=2",
        "++policy.router_replay.enabled=true",
    ]
    run = isolated(parts.run, tmp_path, 2, changes, "", True, folder=tmp_path, seconds=SECONDS, driver=True)
    check_steps(run, (1, 2))
    check_teacher(run, tmp_path)
    for step in (1, 2):
        assert run["logged"]["train/policy/first_ratio_error"][step] < 1e-5
        assert run["logged"]["train/token_mult_prob_error"][step] < 1.1
    isolated(parts.converted, tmp_path / "run/checkpoints/step_1", tmp_path / "model", folder=tmp_path, seconds=SECONDS)
    made, generated = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "generator-1"))
    assert made.keys() == generated.keys()
    assert sum(".experts." in name for name in made) > 2
    assert [name for name, value in generated.items() if not torch.equal(made[name], value)] == []


def test_without_packing_and_scored_again_by_the_teacher_alone(tmp_path: Path) -> None:
    changes = ["policy.sequence_packing.enabled=false"]
    run = isolated(parts.run, tmp_path, 1, changes, folder=tmp_path, seconds=SECONDS, driver=True)
    check_steps(run, (1, 2))
    batch, out = tmp_path / "run" / "batches" / "step-000001.parquet", tmp_path / "scored.parquet"
    isolated(parts.scored_again, tmp_path, batch, out, folder=tmp_path, seconds=SECONDS, driver=True)
    before, after = tensors_of(batch), tensors_of(out)
    mask = before["sampled"].bool()
    for name in ("teacher_logp", "teacher_entropy"):
        assert float((before[name] - after[name])[mask].abs().mean()) < 0.01, name


def test_an_adapter_trains(tmp_path: Path) -> None:
    """A refit merges it; a checkpoint has the adapter alone, which is no model to convert."""
    adapter = [f"policy.megatron_cfg.peft.{change}" for change in ("enabled=true", "dim=4", "alpha=8")]
    run = isolated(parts.run, tmp_path, 1, [*adapter, *SAVING], folder=tmp_path, seconds=SECONDS, driver=True)
    check_steps(run, (1, 2))
    check_teacher(run, tmp_path)
    assert run["logged"]["train/token_mult_prob_error"][2] < 1.1
    with pytest.raises(CheckpointError, match="LoRA adapters alone"):
        read_weights(tmp_path / "run/checkpoints/step_2/policy/weights/iter_0000000")


def test_a_run_continues_with_the_weights_that_it_saved(tmp_path: Path) -> None:
    """The run is taken back to its first checkpoint: the generator gets the weights that it had after that step."""
    run = isolated(parts.run, tmp_path, 1, SAVING, folder=tmp_path, seconds=SECONDS, driver=True)
    check_steps(run, (1, 2))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step_2")
    again = isolated(parts.run, tmp_path, 1, SAVING, folder=tmp_path, seconds=SECONDS, driver=True)
    check_steps(again, (2,))
    names = ("generator-1", "student", "generator-2")
    before, start, after = (load_file(tmp_path / name / "model.safetensors") for name in names)
    assert before.keys() == after.keys()
    assert [name for name, value in before.items() if not torch.equal(after[name], value)] == []
    assert [name for name, value in start.items() if not torch.equal(after[name], value)] != []


@pytest.mark.skipif(not VLLM.exists(), reason=f"no {VLLM.parents[1].name}: make test-nemo-slow")
def test_nemo_rls_own_vllm_worker_generates(tmp_path: Path) -> None:
    """Weights reach it by the same refit, and what it says of its own tokens is near what the student says."""
    make_benchmarks(tmp_path)
    decoding = "samples: 2, temperature: 0.6, top_p: 1.0, top_k: 0, seed: 1, max_tokens: 8"
    evaluation = f"{{every: 1, at_start: true, {decoding}, benchmarks: {{easy: {tmp_path / 'easy.jsonl'}}}}}"
    run = isolated(
        parts.run, tmp_path, 1, [f"++uecr.evaluation={evaluation}"], str(VLLM),
        folder=tmp_path, seconds=SECONDS, driver=True,
    )  # fmt: skip
    check_steps(run, (1, 2))
    evaluations = (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in evaluations] == [0, 1, 2]
    for step in (1, 2):
        assert 0 <= run["logged"]["train/gen_kl_error"][step] < 0.05
