"""NeMo-RL's real `MegatronPolicyWorkerImpl` with our methods, in one process on a CPU: the optimizer and all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nemo_uecr.nemo.loss import PREFIX, first_ratio_error
from nemo_uecr.plan.shapes import adapter_of, shape_of
from tests.nemo.inside.workers import parts, world
from tests.nemo.inside.workers.isolated import each_isolated, needs_megatron

pytestmark = needs_megatron
SECONDS = 900


CALLS: dict[str, Callable[[Path], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "dense": lambda folder: (parts.both, (folder, False)), "mixture": lambda folder: (parts.both, (folder, True)),
    "replayed": lambda folder: (parts.replayed, (folder,)), "restarted": lambda folder: (parts.restarted, (folder,)),
    "adapted": lambda folder: (parts.adapted, (folder,)),
}  # fmt: skip


#: Bytes by which Megatron rounds a buffer of gradients up, at most.
ROUNDING = 4096


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(name) for name in CALLS}


@pytest.fixture(scope="module")
def found(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    calls = [call(folders[name]) for name, call in CALLS.items()]
    answers = each_isolated(calls, folder=tmp_path_factory.mktemp("answers"), seconds=SECONDS)
    return dict(zip(CALLS, answers, strict=True))


@pytest.fixture(params=["dense", "mixture"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(folders: dict[str, Path], form: str) -> Path:
    return folders[form]


@pytest.fixture
def made(found: dict[str, Any], form: str) -> Any:
    return found[form]


@pytest.fixture
def teacher(made: Any) -> Any:
    return made[0]


@pytest.fixture
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


def test_a_student_replays_the_experts_that_generation_chose(found: dict[str, Any]) -> None:
    """Ours as NeMo-RL's own scoring, and training from the same ratio of 1; its router would have chosen otherwise."""
    replayed = found["replayed"]
    chosen = world.scored_tokens(replayed["data"])
    ours = replayed["scores"]["rollout_logp"]
    assert float((replayed["native"] - ours)[chosen].abs().max()) < 1e-5
    assert float((replayed["own choice"]["rollout_logp"] - ours)[chosen].abs().mean()) > 0.01
    assert first_ratio_error(replayed["update"]) < 1e-5


def test_weights_survive_their_way_to_the_host_and_back(student: Any, teacher: Any) -> None:
    """The same bits after an offload, and others after the updates."""
    chosen = world.scored_tokens(student["data"])
    assert float((student["trained"]["logp"] - student["first"]["logp"])[chosen].abs().mean()) > 0
    for before, after in ((student["trained"], student["again"]), teacher["rounds"]):
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_teacher_has_neither_wrapper_nor_optimizer(teacher: Any) -> None:
    assert (teacher["wrapped"], teacher["optimizer"]) == (False, None)


def test_a_student_begins_with_the_checkpoint_of_a_training(found: dict[str, Any]) -> None:
    """As `checkpointing.pretrained_checkpoint`: it has the step's weights, and trains from a ratio of 1."""
    restarted = found["restarted"]
    assert all(torch.equal(restarted["saved"][name], restarted["begun"][name]) for name in restarted["saved"])
    for update in restarted["updates"]:
        assert first_ratio_error(update) < 0.02


def test_a_plan_counts_the_adapters_and_gradients_of_nemo_rls_lora(found: dict[str, Any], folders: Any) -> None:
    """Every linear layer, the output layer too; gradients in the weights' two bytes where the recipe says so."""
    shape = shape_of(str(folders["adapted"] / "student"), role="student")
    adapter = adapter_of(shape, {"enabled": True, "dim": 4, "target_modules": [], "exclude_modules": []})
    assert adapter is not None
    assert found["adapted"]["trained"] == adapter.parameters(shape, shape.layers, last=True)
    assert 0 <= found["adapted"]["gradients"] - 2 * found["adapted"]["trained"] < ROUNDING
