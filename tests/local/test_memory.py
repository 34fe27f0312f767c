"""A student and a teacher in less memory: adapters, recomputed activations, small moments, weights in host memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.generation.adapter import WEIGHTS, add_adapter, load_adapter, load_causal_lm
from nemo_uecr.local.memory import Placement, checkpointed_layers, recomputing, state_of
from nemo_uecr.report.page import write_report
from tests.local import tiny
from tests.local.tiny import every, metrics, run

LORA = ("student.lora_rank=4", "student.dtype=bfloat16", "train.learning_rate=0.03", "loss.reference_kl=0.01")
FLOORED = ("method.scoring_noise=0.05", "method.std_floor=0.15")
CPU = torch.device("cpu")


@pytest.mark.parametrize("changes", [("train.activation_checkpointing=true",), ("offload=teacher",), ("offload=all",)])
def test_these_change_no_number(changes: tuple[str, ...], trained: Path, tmp_path: Path) -> None:
    folder = run(tmp_path / "run", *every(), *changes)
    assert metrics(folder) == metrics(trained)
    for step in trained.glob("checkpoints/step-*"):
        ours = folder / "checkpoints" / step.name
        for name in ("model.safetensors", "optimizer.pt"):
            assert (ours / name).read_bytes() == (step / name).read_bytes()


def test_recomputing_keeps_less_for_the_backward_pass() -> None:
    """The same gradients, bit for bit, from fewer bytes."""
    model = tiny.load()
    ids_bt = torch.arange(60).remainder(model.vocabulary).view(2, 30)
    found = []
    kept: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.nbytes)
        return tensor

    for layers in ([], checkpointed_layers(model.module)):
        kept.clear()
        with recomputing(layers), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model.features(ids_bt).square().mean()
        found.append((sum(kept), torch.autograd.grad(loss, model.trained)))
    assert found[1][0] < 0.2 * found[0][0]
    assert all(map(torch.equal, found[0][1], found[1][1]))


def test_an_architecture_that_cannot_recompute_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("transformers.modeling_layers.GradientCheckpointingLayer", int)
    with pytest.raises(DataError, match="activation_checkpointing is true"):
        run(tmp_path / "run", "train.activation_checkpointing=true")


def test_placement_moves_values_and_only_what_the_policy_names() -> None:
    layer = torch.nn.Linear(3, 3)
    teacher = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    members = {
        "student": layer.parameters, "teacher": teacher.parameters, "optimizer": lambda: state_of(optimizer),
    }  # fmt: skip
    before = [tensor.clone() for tensors in members.values() for tensor in tensors()]
    kept, host = layer.weight.data_ptr(), teacher.weight.data_ptr()
    place = Placement("teacher", CPU, members)
    place.move_to_device("teacher")
    place.move_to_device("student")
    assert layer.weight.data_ptr() == kept
    assert teacher.weight.data_ptr() != host
    place = Placement("all", CPU, members)
    for names in (("student",), ("teacher",), ("student", "optimizer"), ("student",), ("student", "optimizer")):
        place.move_to_device(*names)
    place.move_to_device("student", "teacher", "optimizer")
    after = [tensor for tensors in members.values() for tensor in tensors()]
    assert all(map(torch.equal, before, after))
    layer.weight.data.add_(1.0)  # an update
    changed = layer.weight.detach().clone()
    place.move_to_device("teacher")
    place.move_to_device("student")
    assert torch.equal(layer.weight, changed)


def test_an_adapter_is_trained_from_a_ratio_of_one(tmp_path: Path) -> None:
    one_update = "train.minibatch_responses=8"
    steps = metrics(run(tmp_path / "run", *every(), *LORA, one_update, "train.activation_checkpointing=true"))
    assert all(step["policy/first_ratio_error"] == 0 for step in steps)
    assert steps[0]["policy/ref_kl"] == 0  # with the adapter off the student is the reference
    assert steps[-1]["policy/ref_kl"] > 0


REAL = pytest.mark.real
MODES = [
    pytest.param(LORA, id="lora"),
    pytest.param(("train.activation_checkpointing=true",), id="checkpointing"),
    pytest.param(("offload=all",), id="offload"),
    pytest.param(("train.optimizer=adamw8bit",), id="adamw8bit", marks=REAL),
    pytest.param(("train.optimizer=adamw8bit_sr", "student.dtype=bfloat16"), id="adamw8bit_sr", marks=REAL),
    pytest.param(("teacher.quantize=int8", *FLOORED, "offload=teacher"), id="int8", marks=REAL),
    pytest.param(("teacher.quantize=nf4", *FLOORED, "offload=teacher"), id="nf4", marks=REAL),
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", MODES)
@pytest.mark.parametrize("tied_qwen3", [False, True], ids=["student", "qwen3"])
@pytest.mark.usefixtures("low_bits")
def test_ten_steps_resume_bitwise_and_make_a_report(
    changes: tuple[str, ...], tied_qwen3: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The demo's student as it was trained, and an untrained Qwen3 with a tied head."""
    if request.node.get_closest_marker("real"):
        pytest.importorskip("bitsandbytes", reason="make test-real installs it")
        pytest.importorskip("torchao", reason="make test-real installs it")
    if tied_qwen3:
        folder = tiny.save_model(tiny.new_model(tiny.tokenizer(), seed=5), tiny.tokenizer(), tmp_path / "qwen3")
        changes = (*changes, f"student.model_name={folder}")
    ten = ("train.steps=10", "checkpoint.every=5", "checkpoint.keep_last=2", "train.minibatch_responses=8", *changes)
    whole = run(tmp_path / "whole", *ten)
    half = Path(shutil.copytree(whole, tmp_path / "half"))
    shutil.rmtree(half / "checkpoints" / "step-000010")
    run(half, *ten, resume=True)
    assert metrics(half) == metrics(whole)
    assert all(step["policy/first_ratio_error"] == 0 for step in metrics(whole))
    last, again = (folder / "checkpoints" / "step-000010" for folder in (whole, half))
    weights = WEIGHTS if changes[: len(LORA)] == LORA else "model.safetensors"
    for name in (weights, "optimizer.pt"):
        assert (again / name).read_bytes() == (last / name).read_bytes()
    first = load_file(whole / "checkpoints" / "step-000005" / weights)
    assert not all(torch.equal(value, first[name]) for name, value in load_file(last / weights).items())
    assert "</html>" in write_report([whole], tmp_path / "report.html").read_text()


def test_random_rounding_asks_for_bfloat16_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trains bfloat16 weights"):
        run(tmp_path / "run", "train.optimizer=adamw8bit_sr")


def test_a_saved_adapter_loads_as_it_was_trained(tmp_path: Path) -> None:
    last = run(tmp_path / "run", *every(), *LORA) / "checkpoints" / "step-000002"
    model = tiny.load(last, role="teacher", dtype="bfloat16")
    saved = load_file(last / WEIGHTS)
    assert all(
        torch.equal(parameter, saved[f"base_model.model.{name.replace('.default', '')}"])
        for name, parameter in model.module.named_parameters()
        if "lora_" in name
    )
    ids = torch.arange(12).unsqueeze(0)
    bare, _ = load_causal_lm(str(tiny.STUDENT), local_files_only=True, dtype=torch.bfloat16)
    with torch.no_grad():
        trained, plain = model.features(ids), bare.base_model(input_ids=ids).last_hidden_state
        with model.base().forward_context():
            base = model.features(ids)
    assert torch.equal(base, plain)
    assert not torch.equal(trained, plain)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    module, _ = load_causal_lm(str(tiny.STUDENT), local_files_only=True, dtype=torch.float32)
    add_adapter(module, rank=2, alpha=4.0, seed=0)
    module.save_pretrained(tmp_path)
    other = tiny.new_model(tiny.tokenizer(), seed=0, hidden=48)
    with pytest.raises(DataError, match="does not fit its base model"):
        load_adapter(other, tmp_path)
