"""A whole run over Ray on a CPU: NeMo-RL's real worker groups, cluster, refit and loop, with a colocated teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.nemo.inside.workers import parts, world
from tests.nemo.inside.workers.isolated import each_isolated, isolated, needs_megatron

pytestmark = needs_megatron
SECONDS = 900
TENSOR_PARALLEL = ["policy.megatron_cfg.tensor_model_parallel_size=2", "policy.megatron_cfg.sequence_parallel=true"]

SAVING = ["checkpointing.enabled=true", "checkpointing.save_period=1", "checkpointing.metric_name=null"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def run(folder: Path) -> Any:
    """Two steps of a student and a teacher that share two GPUs, each cut over both."""
    return isolated(parts.run, folder, 2, [*TENSOR_PARALLEL, *SAVING], folder=folder, seconds=SECONDS, driver=True)


@pytest.fixture(scope="module")
def scores_of_the_checkpoint(run: Any, folder: Path) -> Any:
    """By the first step's checkpoint as a teacher, on one rank; it has become the Hugging Face model `model`, too."""
    step = folder / "run/checkpoints/step_1"
    taught = (folder, step / "policy/weights/iter_0000000", folder / "generator-1")
    calls = [(parts.converted, (step, folder / "model")), (parts.taught, taught)]
    return each_isolated(calls, folder=folder, seconds=SECONDS)[1]


def test_the_loop_trains_two_steps(run: Any) -> None:
    """Every response that was generated, from a ratio of 1, with a gradient that rewards and teacher give."""
    logged = run["logged"]
    for step in (1, 2):
        assert logged["train/count/trained"][step] == 8
        assert 0 < logged["train/grad_norm"][step] < float("inf")
        assert logged["train/policy/first_ratio_error"][step] < 0.02
    assert run["refits"] == 2


def test_the_teacher_scored_what_was_trained(run: Any) -> None:
    assert run["batches"].keys() == {1, 2}
    for tensors in run["batches"].values():
        mask = tensors["sampled"].bool()
        assert int(mask.sum()) > 8
        assert bool((tensors["teacher_logp"][mask] < 0).all())
        assert float((tensors["teacher_logp"] - tensors["old_logp"])[mask].abs().mean()) > 0.01
        assert float(tensors["reward"].std()) > 0
        assert float(tensors["advantage"][mask].abs().mean()) > 0


def test_scores_over_two_ranks_are_the_definitions(run: Any, folder: Path) -> None:
    """Of the first step, whose student is the one in the folder; both roles are sequence-parallel."""
    for role in ("teacher", "student"):
        for name, (ours, transformers) in world.errors_of_batch(run["batches"][1], folder, role).items():
            assert ours <= 2 * transformers + 1e-5, (role, name)


def test_the_generator_has_the_policys_weights(run: Any) -> None:
    """What it says of its own tokens is what the refitted student says: within what sixteen bits give."""
    for step in (1, 2):
        assert run["logged"]["train/token_mult_prob_error"][step] < 1.1


def test_a_checkpoint_becomes_the_model_that_generated(scores_of_the_checkpoint: Any, folder: Path) -> None:
    """From two tensor-parallel ranks, bit for bit: the second step's responses are of the first step's weights."""
    made, generated = (load_file(folder / name / "model.safetensors") for name in ("model", "generator-1"))
    assert made.keys() == generated.keys()
    assert [name for name, value in generated.items() if not torch.equal(made[name], value)] == []
    assert (folder / "model" / "tokenizer.json").read_bytes() == (folder / "student" / "tokenizer.json").read_bytes()


def test_a_checkpoint_teaches(scores_of_the_checkpoint: Any) -> None:
    """As `uecr.teacher.megatron_checkpoint`: its scores are of the step's weights."""
    for name, (ours, transformers) in scores_of_the_checkpoint.items():
        assert ours <= 2 * transformers + 1e-5, name
