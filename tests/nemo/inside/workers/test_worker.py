"""NeMo-RL's real `MegatronPolicyWorkerImpl` with our methods, in one process on a CPU: the optimizer and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nemo_uecr.nemo.loss import PREFIX, first_ratio_error
from tests.nemo.inside.workers import parts, world
from tests.nemo.inside.workers.isolated import isolated, needs_megatron

pytestmark = needs_megatron
SECONDS = 900


@pytest.fixture(scope="module", params=["dense", "mixture"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(request.param)


@pytest.fixture(scope="module")
def made(folder: Path) -> Any:
    return isolated(parts.both, folder, folder.name.startswith("mixture"), folder=folder, seconds=SECONDS)


@pytest.fixture(scope="module")
def teacher(made: Any) -> Any:
    return made[0]


@pytest.fixture(scope="module")
def student(made: Any) -> Any:
    return made[1]


def test_a_refit_sends_the_folders_tensors_bit_for_bit(student: Any, folder: Path) -> None:
    """From a conversion to Megatron's layout and back; a tied head is sent as well."""
    expected = load_file(folder / "s" / "student" / "model.safetensors")
    assert student["export"].keys() - expected.keys() <= {"lm_head.weight"}
    assert [name for name, value in expected.items() if not torch.equal(student["export"][name], value)] == []


def test_our_scores_at_the_rollout_temperature_are_nemo_rls_own(student: Any) -> None:
    chosen = world.scored_tokens(student["data"])
    for native in (student["native"], student["reference"]):  # the reference is the student before its first update
        assert float((native - student["first"]["rollout_logp"])[chosen].abs().max()) < 1e-5


@pytest.mark.parametrize("role", [0, 1])
def test_scores_are_the_definitions_within_what_sixteen_bits_give(made: Any, role: int) -> None:
    for name, (ours, transformers) in made[role]["errors"].items():
        assert ours <= 2 * transformers + 1e-5, name


def test_the_students_optimizer_trains_every_token_from_a_ratio_of_one(student: Any) -> None:
    assert (student["wrapper"], student["optimizer"]) == ("DistributedDataParallel", "ChainedOptimizer")
    first, second = student["updates"]
    for update in (first, second):
        assert sum(map(float, update[f"{PREFIX}trained_tokens"])) == world.trained_tokens(student["data"])
        assert 0 < update["grad_norm"] < float("inf")
    worst = [first_ratio_error(update) for update in (first, second)]
    assert worst[0] < 0.02 < worst[1]


def test_a_step_moves_all_weights_but_the_router_s(student: Any, folder: Path) -> None:
    """NeMo-RL freezes it by its default, and a refit exports each expert."""
    routers = {name: moved for name, moved in student["moved"].items() if name.endswith("mlp.gate.weight")}
    assert set(routers.values()) == ({False} if folder.name.startswith("mixture") else set())
    others = [moved for name, moved in student["moved"].items() if name not in routers and "norm" not in name]
    assert sum(others) > 0.9 * len(others)


def test_a_student_replays_the_experts_that_generation_chose(tmp_path: Path) -> None:
    """Ours as NeMo-RL's own scoring, and training from the same ratio of 1; its router would have chosen otherwise."""
    found = isolated(parts.replayed, tmp_path, folder=tmp_path, seconds=SECONDS)
    chosen = world.scored_tokens(found["data"])
    ours = found["scores"]["rollout_logp"]
    assert float((found["native"] - ours)[chosen].abs().max()) < 1e-5
    assert float((found["own choice"]["rollout_logp"] - ours)[chosen].abs().mean()) > 0.01
    assert first_ratio_error(found["update"]) < 1e-5


def test_weights_survive_their_way_to_the_host_and_back(student: Any, teacher: Any) -> None:
    """The same bits after an offload, and others after the updates."""
    chosen = world.scored_tokens(student["data"])
    assert float((student["trained"]["logp"] - student["first"]["logp"])[chosen].abs().mean()) > 0
    for before, after in ((student["trained"], student["again"]), teacher["rounds"]):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_teacher_has_neither_wrapper_nor_optimizer(teacher: Any) -> None:
    assert (teacher["wrapped"], teacher["optimizer"]) == (False, None)


def test_a_student_begins_with_the_checkpoint_of_a_training(tmp_path: Path) -> None:
    """As `checkpointing.pretrained_checkpoint`: it has the step's weights, and trains from a ratio of 1."""
    found = isolated(parts.restarted, tmp_path, folder=tmp_path, seconds=SECONDS)
    assert all(torch.equal(found["saved"][name], found["begun"][name]) for name in found["saved"])
    for update in found["updates"]:
        assert first_ratio_error(update) < 0.02
