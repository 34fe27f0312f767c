"""Mixtures of experts in the local back end: what is trained, what has an adapter, what is rounded, and a whole run."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nemo_uecr.config.load import load_config
from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.generation.adapter import add_adapter, freeze_routers
from nemo_uecr.local.memory import plain_tensors
from nemo_uecr.local.token_model import load_model
from nemo_uecr.plan.contents import GPUS, Lengths
from nemo_uecr.plan.local import kept_bytes, local_plan, lora_parameters, quantized_bytes
from nemo_uecr.plan.shapes import KNOWN, ModelShape, parameters, shape_of
from nemo_uecr.responses.table import read_responses
from tests.config.shipped import DEMO
from tests.local import tiny
from tests.local.tiny import every, run
from tests.plan.live_bytes import keeping, nbytes
from tests.plan.subjects import real_model, tiny_shape

FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3Moe": {"num_experts": 4, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "GptOss": {"num_local_experts": 4},
    "Mixtral": {"num_local_experts": 4},
    "HunYuanMoEV1": {"num_experts": 4, "moe_topk": 2, "use_mixed_mlp_moe": False},
    "Afmoe": {"num_experts": 4, "moe_intermediate_size": 16, "num_dense_layers": 0},
}
#: The module with the router's weights within a layer.
ROUTERS = {
    "Qwen3Moe": ["mlp.gate"], "GptOss": ["mlp.router"], "Mixtral": ["mlp.gate"], "HunYuanMoEV1": ["mlp.gate.wg"],
    "Afmoe": ["mlp.router.gate"], "JetMoe": ["mlp.router.layer", "self_attention.experts.router.layer"],
}  # fmt: skip
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 24, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip


def made(family: str) -> Any:
    import transformers

    torch.manual_seed(0)
    tokenizer = tiny.tokenizer()
    config = getattr(transformers, f"{family}Config")(**SIZES, **FAMILIES.get(family, {}), vocab_size=len(tokenizer))
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def saved(folder: Path, family: str) -> Path:
    made(family).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ROUTERS)
def test_routers_alone_are_frozen(family: str) -> None:
    module = made(family)
    freeze_routers(module)
    parameters = [(name, each) for name, each in module.named_parameters() if not name.endswith("expert_bias")]
    frozen = [name for name, parameter in parameters if not parameter.requires_grad]
    assert {re.sub(r"\d+", "N", name).rpartition(".")[0] for name in frozen} == {
        f"model.layers.N.{name}" for name in ROUTERS[family]
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("experts", "routers"), [(False, False), (True, False), (True, True)])
def test_an_adapter_is_on_what_the_keys_name(family: str, experts: bool, routers: bool) -> None:
    """The model is the base's before training, and every part that is named gets a gradient."""
    pytest.importorskip("peft")
    module, ids = made(family), torch.arange(12)[None]
    with torch.no_grad():
        before = module(input_ids=ids).logits
    add_adapter(module, rank=2, alpha=4.0, seed=0, experts=experts, routers=routers)
    assert torch.equal(module(input_ids=ids).logits, before)
    module(input_ids=ids, labels=ids).loss.backward()
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    parts = {"self_attn": True, "mlp.experts": experts, ROUTERS[family][0]: routers}
    for part, named in parts.items():
        gradients = [
            float(each.grad.abs().sum()) for name, each in trained.items() if f".{part}." in name and "lora_B" in name
        ]
        assert bool(gradients) is named, part
        assert all(gradients)
    if family == "Qwen3Moe":
        shape = tiny_shape(**SHAPE)
        found = sum(parameter.numel() for parameter in trained.values())
        assert found == lora_parameters(shape, 2, experts=experts, routers=routers)


def test_a_mixture_that_peft_cannot_tell_from_its_experts_is_refused_in_one_line() -> None:
    pytest.importorskip("peft")
    module = made("Qwen3Moe")
    module.model.layers[0].self_attn.gate_proj = torch.nn.Linear(32, 32)  # without an up_proj
    with pytest.raises(DataError, match=r"^peft cannot put an adapter on .*gate_proj.*lora_rank=0"):
        add_adapter(module, rank=2, alpha=4.0, seed=0)


SHAPE = {
    "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "feed_forward": 24, "tied": False,
    "experts": 4, "experts_per_token": 2, "expert_width": 16,
}  # fmt: skip


def test_experts_that_are_not_there_get_no_adapter() -> None:
    pytest.importorskip("peft")
    module = tiny.new_model(tiny.tokenizer(), seed=0)
    with pytest.raises(DataError, match=r"student\.lora_experts: got true, but Qwen3ForCausalLM is no mixture"):
        add_adapter(module, rank=2, alpha=4.0, seed=0, experts=True)
    for words in (
        ["student.lora_experts=true"],
        ["student.lora_experts=true", "student.lora_rank=2", "rollout.engine=vllm"],
    ):
        with pytest.raises(ConfigError, match=r"student\.lora_experts: got true; it needs student\.lora_rank above 0"):
            load_config(DEMO, words)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_mixture_trains_with_a_mixture_as_teacher(tmp_path: Path, freeze: bool) -> None:
    """From a ratio of exactly 1; the router moves where it may, the experts always."""
    student, teacher = saved(tmp_path / "student", "Qwen3Moe"), saved(tmp_path / "teacher", "Mixtral")
    models = [f"student.model_name={student}", f"teacher.model_name={teacher}"]
    folder = run(tmp_path / "run", *every(), *models, f"student.freeze_moe_router={str(freeze).lower()}")
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["policy/first_ratio_error"] for row in metrics] == [0.0, 0.0]
    saved_batch = read_responses(folder / "batches" / "step-000001.parquet")
    assert bool((saved_batch.tokens("teacher_entropy") > 0).all())
    before, after = (
        load_file(student / "model.safetensors"),
        load_file(folder / "checkpoints/step-000002/model.safetensors"),
    )
    moved = {name: not torch.equal(before[name], after[name]) for name in before}
    assert before.keys() == after.keys()
    assert {value for name, value in moved.items() if name.endswith("mlp.gate.weight")} == {not freeze}
    assert any(value for name, value in moved.items() if ".experts." in name)


@pytest.mark.real
@pytest.mark.usefixtures("low_bits")
@pytest.mark.parametrize(
    ("family", "quantize", "whole"),
    [("Qwen3Moe", "int8", True), ("Mixtral", "int8", True), ("GptOss", "int8", False), ("Qwen3Moe", "nf4", False)],
)
def test_a_rounded_mixture_tells_what_is_rounded(
    family: str, quantize: Any, whole: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """int8 reaches experts, as torchao's own tensors; what stays is said with the memory that it takes."""
    pytest.importorskip("torchao", reason="make test-real installs it")
    pytest.importorskip("bitsandbytes", reason="make test-real installs it")
    place = {"role": "teacher", "dtype": "bfloat16", "device": torch.device("cpu"), "master_weights": False}
    folder, ids = str(saved(tmp_path, family)), torch.arange(12)[None]
    plain = load_model(folder, **place)
    with caplog.at_level(logging.WARNING):
        model = load_model(folder, **place, quantize=quantize)
    with torch.no_grad():
        rounded, exact = model.features(ids).float(), plain.features(ids).float()
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.2
    held = sum(tensor.nbytes for tensor in plain_tensors(model.module.parameters()))
    (said,) = [message for message in caplog.messages if "of the bytes of its weights" in message]
    share = int(re.search(r"rounds (\d+) %", said)[1]) / 100  # type: ignore[index]
    assert said.endswith(f"it takes {held / 2**30:.2f} GiB")
    assert share > 0.4 if whole else share < 0.2  # the embeddings of a tiny model are half of it
    if family == "Qwen3Moe":
        codes = 64 * 8 if quantize == "nf4" else 0
        assert quantized_bytes(shape_of(folder, role="teacher"), quantize, 2) == held - codes


def test_the_plan_counts_what_is_rounded_and_trained() -> None:
    name = "Qwen/Qwen3-30B-A3B"
    base = [
        "student.dtype=bfloat16",
        "data.train=x",
        "run.folder=y",
        "train.steps=1",
        "method.std_floor=0.1",
        "method.scoring_noise=0.01",
    ]
    models = ["student.model_name=Qwen/Qwen3-0.6B", f"teacher.model_name={name}"]

    def teacher(*words: str) -> Any:
        config = load_config(tiny.BASE, [*base, *models, *words]).config
        plan = local_plan(
            config, GPUS["h100"], Lengths(100, 1000, 0.9), sizes=lambda name, role: shape_of(name, role=role)
        )
        return next(item for phase in plan.phases for item in phase.device if item.name == "teacher weights")

    whole = teacher().size
    assert whole == 2 * parameters(KNOWN[name])
    int8, nf4 = teacher("teacher.quantize=int8"), teacher("teacher.quantize=nf4")
    assert 0.50 < int8.size / whole < 0.53
    assert 0.97 < nf4.size / whole < 0.99
    assert (int8.how.rpartition("; ")[2], nf4.how.rpartition("; ")[2]) == ("int8 of 98%", "nf4 of 3%")


@pytest.mark.parametrize("bfloat16", [False, True], ids=["float32", "bfloat16"])
def test_a_layer_with_experts_keeps_about_what_is_planned(bfloat16: bool) -> None:
    """What the router keeps besides is small beside real widths."""
    tokens = 96

    def kept(shape: ModelShape) -> int:
        model = real_model(shape)
        with keeping(model) as held, torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16):
            model.base_model(input_ids=torch.arange(tokens)[None] % shape.vocabulary, use_cache=False)
        return nbytes(held)

    sizes = {"hidden": 128, "heads": 4, "head_dim": 32, "experts": 4, "experts_per_token": 2, "expert_width": 96}
    fewer, more = (tiny_shape(layers=layers, **sizes) for layers in (2, 3))
    assert kept(more) - kept(fewer) == pytest.approx(kept_bytes(more, tokens, bfloat16=bfloat16), rel=0.25)
