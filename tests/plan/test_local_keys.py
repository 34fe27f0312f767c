"""The plan of the keys that make room: what moves, what shrinks, and what the run itself then holds."""

from __future__ import annotations

import pytest
import torch

from nemo_uecr.config.load import load_config
from nemo_uecr.config.schema import Quantize
from nemo_uecr.generation.adapter import add_adapter
from nemo_uecr.plan.contents import GPUS, Lengths, Plan
from nemo_uecr.plan.local import local_plan, lora_parameters, quantized_bytes
from nemo_uecr.plan.shapes import KNOWN, parameters, shape_of
from tests.local import tiny
from tests.plan.subjects import sizes_of

MODELS = ("student", "reference", "teacher")


def planned(*overrides: str) -> Plan:
    base = ("student.dtype=bfloat16", "data.train=x", "run.folder=y", "rollout.microbatch_responses=8")
    models = ("student.model_name=Qwen/Qwen3-0.6B", "teacher.model_name=Qwen/Qwen3-4B")
    config = load_config(tiny.BASE, [*base, *models, "train.steps=1", *overrides]).config
    return local_plan(config, GPUS["h100"], Lengths(100, 1000, 0.9), sizes=lambda name, role: shape_of(name, role=role))


def test_an_adapter_has_the_parameters_that_peft_gives_it() -> None:
    from nemo_uecr.generation.models import load_tokenizer

    module = tiny.new_model(load_tokenizer(str(tiny.STUDENT), local_files_only=True), seed=0)
    add_adapter(module, rank=3, alpha=1.0, seed=0)
    found = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    assert lora_parameters(shape_of(str(tiny.STUDENT), role="student"), 3) == found


@pytest.mark.real
@pytest.mark.usefixtures("low_bits")
@pytest.mark.parametrize("quantize", ["int8", "nf4"])
def test_a_rounded_teacher_has_the_bytes_of_its_tensors(quantize: Quantize) -> None:
    pytest.importorskip("torchao", reason="make test-real installs it")
    pytest.importorskip("bitsandbytes", reason="make test-real installs it")
    from nemo_uecr.local.memory import plain_tensors
    from nemo_uecr.local.token_model import load_model

    model = load_model(
        str(tiny.TEACHER), role="teacher", dtype="bfloat16", device=torch.device("cpu"), master_weights=False,
        quantize=quantize,
    )  # fmt: skip
    codes = 64 * 14 if quantize == "nf4" else 0  # the 16 values of the format, beside each of 14 layers
    found = sum(tensor.nbytes for tensor in plain_tensors(model.module.parameters()))
    assert quantized_bytes(shape_of(str(tiny.TEACHER), role="teacher"), quantize, 2) == found - codes


def test_offload_leaves_on_the_device_what_a_phase_needs() -> None:
    everything = sizes_of(planned(), "rollout")
    assert {"student weights", "reference weights", "teacher weights", "optimizer"} <= everything.keys()
    moved = planned("offload=all")
    assert sizes_of(moved, "rollout").keys() & {"teacher weights", "reference weights", "optimizer"} == set()
    assert "student weights" not in sizes_of(moved, "score teacher")
    assert "teacher weights" not in sizes_of(moved, "update")
    assert {item.name for item in moved.host} == {"batch", "optimizer", *(f"{name} weights" for name in MODELS)}
    assert planned("offload=teacher").fullest.size < planned().fullest.size


@pytest.mark.parametrize(
    ("keys", "moved"),
    [
        ([], ""),
        (["offload=teacher"], "TR"),  # frozen: they leave without a copy
        (["offload=all"], "TRSSOO"),
        (["offload=all", "student.lora_rank=32"], "TSSOO"),  # the student is the reference
        (["offload=all", "method.name=grpo", "loss.reference_kl=0"], "OO"),  # the student never leaves
        (["student.lora_rank=32", "rollout.engine=vllm"], "VV"),
        (["student.lora_rank=32", "rollout.engine=vllm", "offload=all"], "SSTSSOOVV"),  # vLLM has its own base
    ],
)
def test_bytes_over_the_host_link_of_a_step(keys: list[str], moved: str) -> None:
    plan = planned(*keys)
    held = {name[0].upper(): sizes_of(plan, "update").get(f"{name} weights", 0) for name in MODELS}
    held |= {"T": 2 * parameters(KNOWN["Qwen/Qwen3-4B"]), "O": sizes_of(plan, "update")["optimizer"]}
    held |= {"R": held["S"], "V": sizes_of(plan, "rollout").get("vLLM weights", 0)}
    found = float(next(fact for fact in plan.facts if "to and from" in fact).split()[0])
    assert found == pytest.approx(sum(held[letter] for letter in moved) / 2**30, abs=0.05)


@pytest.mark.parametrize(("every", "lost"), [(5, 5), (0, 40), (90, 40)])
def test_what_the_run_takes_and_a_kill_costs(every: int, lost: int) -> None:
    plan = planned("train.steps=40", f"checkpoint.every={every}")
    whole, again = (f"{count * plan.seconds / 3600:,.1f} h" for count in (40, lost))
    assert f"40 steps: {whole}; a kill costs at most {lost} of them, {again} (checkpoint.every)" in plan.facts


def test_vllm_sleeps_outside_of_the_rollout() -> None:
    """0.6B in bfloat16: 0.3 x 79.1 - 1.11 - 3 GiB for keys and values of 2 x 28 x 8 x 128 x 2 bytes a token."""
    plan = planned("rollout.engine=vllm", "rollout.gpu_memory=0.3")
    cache = int(0.3 * int(79.1 * 2**30)) - 2 * parameters(KNOWN["Qwen/Qwen3-0.6B"]) - 3 * 2**30
    assert sizes_of(plan, "rollout")["KV cache"] == cache
    assert "vLLM weights" not in sizes_of(plan, "update")
    assert sizes_of(plan, "update")["vLLM asleep"] == int(0.8 * 2**30)
    tokens = 2048 + 16384
    assert f"of {cache // (tokens * 114_688)} responses of {tokens} tokens at once" in " ".join(plan.facts)
    crowded = planned("rollout.engine=vllm", "rollout.gpu_memory=0.05")
    assert "does not hold one" in crowded.faults[1]
    assert f"room for the keys and values of 0 responses of {tokens} tokens at once" in crowded.facts
    small = ("train.microbatch_responses=1", "train.activation_checkpointing=true", "rollout.max_response_tokens=512")
    assert "lower rollout.gpu_memory or" in planned("rollout.engine=vllm", "rollout.gpu_memory=0.99", *small).faults[0]


def test_several_teachers_are_counted_and_two_names_of_one_share_it() -> None:
    names = {"a": "4B", "b": "8B", "c": "4B"}
    models = ", ".join(f"{name}: {{model_name: Qwen/Qwen3-{size}}}" for name, size in names.items())
    own = 'd: {self: initial, prompt_template: "{question}"}'
    words = ("teacher=null", f"teachers={{{models}, {own}}}", "routing.key=kind")
    plan, moved = planned(*words), planned(*words, "offload=teacher")
    turns = {phase.name for phase in plan.phases if "teachers." in phase.name}
    assert turns == {"score teachers.a", "score teachers.b", "score teachers.d"}
    scoring = next(phase for phase in plan.phases if phase.name == "score teachers.a")
    assert "1/3 of the responses" in scoring.how
    served = "{url: 'http://h:1', model_name: e, tokenizer: Qwen/Qwen3-4B, entropy: plugin}"
    beside = planned("teacher=null", f"teachers={{a: {{model_name: Qwen/Qwen3-4B}}, e: {served}}}", "routing.key=kind")
    assert "1/2 of the responses" in next(phase for phase in beside.phases if phase.name == "score teachers.a").how
    held = {"teachers.a weights", "teachers.b weights", "reference weights"}
    assert sizes_of(plan, "update").keys() >= held
    assert sizes_of(moved, "score teachers.a").keys() & held == {"teachers.a weights"}
    assert sizes_of(moved, "score teachers.d").keys() & held == {"reference weights"}
    assert {item.name for item in moved.host} >= held
