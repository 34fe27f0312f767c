"""The model in memory is the one in the folder, and no row's numbers depend on the others of its batch."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from nemo_uecr.errors import DataError
from nemo_uecr.generation import models
from nemo_uecr.generation.adapter import CONFIG, WEIGHTS
from nemo_uecr.generation.decode import check_causal
from nemo_uecr.generation.engines import (
    ModelTokens,
    VllmEngine,
    _stored_as,
    check_model,
    check_trainable,
    check_weights,
    context_of,
    load_module,
)
from nemo_uecr.local.token_model import load_model
from tests.local import tiny

SIZES: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip


def saved(folder: Path, config: Any) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def stated(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / models.SINGLE)
    change(tensors)
    save_file(tensors, folder / models.SINGLE, metadata={"format": "pt"})


def qwen3_as_llama(folder: Path) -> None:
    saved(folder, Qwen3Config(**SIZES))
    stated(folder, model_type="llama", architectures=["LlamaForCausalLM"])


def one_layer_fewer(folder: Path) -> None:
    saved(folder, LlamaConfig(**SIZES))
    stated(folder, num_hidden_layers=1)


def one_layer_more(folder: Path) -> None:
    saved(folder, LlamaConfig(**SIZES))
    stated(folder, num_hidden_layers=3)


def biases_without_a_place(folder: Path) -> None:
    saved(folder, LlamaConfig(**SIZES, attention_bias=True))
    stated(folder, attention_bias=False)


def a_value_head(folder: Path) -> None:
    saved(folder, LlamaConfig(**SIZES))
    weights(folder, lambda tensors: tensors.update({"v_head.summary.weight": torch.zeros(1, 16)}))


def another_head_than_the_embedding(folder: Path) -> None:
    saved(folder, Qwen2Config(**SIZES, tie_word_embeddings=True))
    weights(folder, lambda tensors: tensors.update({"lm_head.weight": torch.ones(32, 16)}))


def a_head_of_another_name(folder: Path) -> None:
    saved(folder, LlamaConfig(**SIZES))
    weights(folder, lambda tensors: tensors.update(lm_head=tensors.pop("lm_head.weight")))


def another_head_under_a_name_of_its_folder(folder: Path) -> None:
    """As of a model for pictures, whose embedding lies under its text model, where only the text's part is tied."""
    text = {**SIZES, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
            "linear_num_value_heads": 2, "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip
    saved(folder, AutoConfig.for_model("qwen3_5_text", **text, tie_word_embeddings=True))
    stated(folder, model_type="qwen3_5", tie_word_embeddings=False,
           text_config=json.loads((folder / "config.json").read_text()))  # fmt: skip

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace("model.", "model.language_model.")] = tensors.pop(name)
        tensors["lm_head.weight"] = torch.ones(32, 16)
        tensors["mtp.embed_tokens.weight"] = torch.ones(32, 16)

    weights(folder, change)


def rope_beside_its_parameters(folder: Path) -> None:
    """As a card says to make a model read longer texts; its own rope_theta would be lost."""
    rope = {"rope_type": "default", "rope_theta": 1e6}
    saved(folder, LlamaConfig(**SIZES, rope_parameters=rope))
    stated(folder, rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})


def another_width(folder: Path) -> None:
    saved(folder, LlamaConfig(**SIZES))
    stated(folder, intermediate_size=16)


WRONG: dict[Callable[[Path], None], str] = {
    qwen3_as_llama: r"has 4 weights that LlamaForCausalLM has no place for \(model.layers.0.self_attn.k_norm.weight",
    one_layer_fewer: r"has 9 weights that .* \(model.layers.1.input_layernorm.weight",
    one_layer_more: r"lacks 9 weights \(model.layers.2",
    biases_without_a_place: r"has 8 weights that .* \(model.layers.0.self_attn.k_proj.bias",
    a_value_head: r"has 1 weights that .* \(v_head.summary.weight\)",
    another_head_than_the_embedding: "tie_word_embeddings",
    a_head_of_another_name: r"lacks 1 weights \(lm_head.weight",
    another_head_under_a_name_of_its_folder: "tie_word_embeddings",
    rope_beside_its_parameters: "has rope_parameters, and beside them rope_type 'yarn' where they say 'default'",
    another_width: r"has 6 weights of another shape .* model.layers.0.mlp.down_proj.weight: \(16, 32\), expected",
}


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
def test_weights_and_configuration_that_disagree(make: Callable[[Path], None], tmp_path: Path) -> None:
    """By the load itself, and by the check that reads names and shapes alone."""
    make(tmp_path / "m")
    for refuse in (lambda: load_module(str(tmp_path / "m"), "float32"), lambda: check_weights(str(tmp_path / "m"))):
        with pytest.raises(DataError, match=WRONG[make]):
            refuse()


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16], "fmt": "e4m3"}


def as_a_run_begins(folder: str) -> None:
    check_model(folder)
    check_weights(folder)
    models.load_tokenizer(folder, local_files_only=True)


def in_eight_bits(folder: Path, config: Any = None, *, scales: str = "") -> Path:
    """A model whose linear layers are stored as float8, each divided by its scale, which is beside it under a name."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "proj" in name]:
            scale = tensors[name].abs().max() / 448
            tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
            if scales:
                tensors[name + scales] = scale.reshape(1, 1)

    saved(folder, LlamaConfig(**SIZES))
    weights(folder, change)
    if config is not None:
        stated(folder, quantization_config=config)
    return folder


@pytest.mark.parametrize(
    ("config", "scales", "fault"),
    [
        (None, "", r"weights of type F8_E4M3, but its config.json has no quantization_config"),
        (None, "_scale", r"weights of type F8_E4M3, but its config.json has no quantization_config"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "_scale", "14 weights that .*weight_scale"),
    ],
    ids=["no scales", "no configuration", "a method that transformers does not know"],
)
def test_weights_of_few_bits_without_their_scales(config: Any, scales: str, fault: str, tmp_path: Path) -> None:
    """The numbers that are stored would be taken for the weights: up to 448 in place of 0.7."""
    folder = str(in_eight_bits(tmp_path / "m", config, scales=scales))
    with pytest.raises(DataError, match=fault):
        as_a_run_begins(folder)


def test_a_teacher_of_few_bits_is_read_with_its_scales_and_no_student(tmp_path: Path) -> None:
    """A student's checkpoint would have scales that its configuration does not know, and no run could go on."""
    folder = in_eight_bits(tmp_path / "m", FP8, scales="_scale_inv")
    check_model(str(folder))
    check_weights(str(folder))
    there = load_module(str(folder), "float32").model.layers[0].self_attn.q_proj.weight
    torch.manual_seed(0)
    meant = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).model.layers[0].self_attn.q_proj.weight
    torch.testing.assert_close(there.float(), meant, atol=0.03, rtol=0.07)
    with pytest.raises(DataError, match=r"quantised weights \(fp8\); training needs plain ones"):
        check_trainable(str(folder))
    check_trainable(str(saved(tmp_path / "plain", LlamaConfig(**SIZES))))


def test_whole_numbers_of_few_bits_without_their_scales(tmp_path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: (each * 100).to(torch.int8) for name, each in tensors.items() if "proj" in name})

    saved(tmp_path, LlamaConfig(**SIZES))
    weights(tmp_path, change)
    with pytest.raises(DataError, match=r"weights of type I8, but its config\.json has no quantization_config"):
        check_model(str(tmp_path))


def test_the_quantisation_of_a_text_model_is_the_student_s(tmp_path: Path) -> None:
    """As models for pictures state it."""
    saved(tmp_path, LlamaConfig(**SIZES))
    stated(tmp_path, text_config={"quantization_config": FP8})
    with pytest.raises(DataError, match=r"quantised weights \(fp8\)"):
        check_trainable(str(tmp_path))


def test_vllm_gets_no_weights_that_it_would_drop(tmp_path: Path) -> None:
    a_value_head(tmp_path)
    with pytest.raises(DataError, match=r"has 1 weights that .* \(v_head"):
        VllmEngine(str(tmp_path), ModelTokens(None, frozenset()), dtype="float32", max_length=8)


def test_the_weights_of_an_adapter_are_those_of_its_base(tmp_path: Path) -> None:
    base, folder = saved(tmp_path / "base", Qwen2Config(**SIZES, tie_word_embeddings=True)), tmp_path / "adapter"
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps({"base_model_name_or_path": str(base), "r": 4}))
    save_file({"a": torch.zeros(1)}, folder / WEIGHTS)
    check_weights(str(folder))
    weights(base, lambda tensors: tensors.update({"lm_head.weight": torch.ones(32, 16)}))
    with pytest.raises(DataError, match="tie_word_embeddings"):
        check_weights(str(folder))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_pointers_of_git_lfs_are_called_so(name: str, tmp_path: Path) -> None:
    saved(tmp_path, LlamaConfig(**SIZES))
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n")
    with pytest.raises(DataError, match=rf"{name} is a pointer of Git LFS"):
        as_a_run_begins(str(tmp_path))


def test_an_embedding_that_is_saved_twice_is_still_the_output_layer(tmp_path: Path) -> None:
    saved(tmp_path, Qwen2Config(**SIZES, tie_word_embeddings=True))
    weights(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    check_weights(str(tmp_path))
    module = load_module(str(tmp_path), "float32")
    assert module.get_output_embeddings().weight is module.get_input_embeddings().weight


def test_the_embedding_is_the_one_of_the_text_model(tmp_path: Path) -> None:
    """Of several weights by that name, as of other towers, the one whose name is shortest."""
    module = load_module(str(saved(tmp_path, LlamaConfig(**SIZES))), "float32")
    names = ["model.audio_tower.embed_tokens.weight", "model.embed_tokens.weight", "model.norm.weight"]
    assert _stored_as(module.get_input_embeddings(), module, names) == "model.embed_tokens.weight"
    assert _stored_as(module.get_output_embeddings(), module, names) == ""


def test_a_stale_single_file_beside_shards(tmp_path: Path) -> None:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(tmp_path, max_shard_size="5KB")
    check_model(str(tmp_path))
    saved(tmp_path / "stale", LlamaConfig(**SIZES))
    shutil.copy(tmp_path / "stale" / models.SINGLE, tmp_path)
    with pytest.raises(DataError, match=r"has model.safetensors and model.safetensors.index.json with \d+ other files"):
        check_model(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["consolidated.safetensors", "adapter_model.safetensors", "model-00001-of-00002.safetensors"]
)
def test_other_weights_beside_a_single_file(name: str, tmp_path: Path) -> None:
    """transformers would not read them, and vLLM, without an index, reads whatever ends as they do."""
    shutil.copy(saved(tmp_path, LlamaConfig(**SIZES)) / models.SINGLE, tmp_path / name)
    with pytest.raises(DataError, match=rf"has model.safetensors and no .*index.json, and beside it {name}"):
        check_model(str(tmp_path))


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(tmp_path, max_shard_size="5KB")
    last = sorted(tmp_path.glob("model-*.safetensors"))[-1]
    save_file(load_file(last) | {"model.embed_tokens.weight": torch.ones(32, 16)}, last, metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"has model.embed_tokens.weight twice, in model-00001-of-\d+.safetensors and"):
        check_model(str(tmp_path))


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 5e6}, "rope_theta 5000000.0"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
          "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_theta None where they say 1000000.0"),
        ({"text_config": {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"type": "linear", "factor": 2.0}}},
         "factor 2.0 where they say None"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}, "rope_scaling": {"factor": 2.0}}, "factor 2.0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 1e6}, ""),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
          "rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_theta": 1e6}, ""),  # as `let_older_read` has it
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
          "rope_scaling": {"type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, ""),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}, "rope_theta": 1e4}, ""),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 1e4}, ""),
    ],
)  # fmt: skip
def test_rope_that_is_stated_twice(values: dict[str, Any], fault: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=fault) if fault else nullcontext():
        models.check_rope(str(tmp_path))


def test_a_model_that_is_no_language_model_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava"}))
    save_file({"a": torch.zeros(1)}, tmp_path / models.SINGLE)
    with pytest.raises(DataError, match=r"transformers has no language model for its kind of config\.json"):
        check_weights(str(tmp_path))


def test_an_index_of_the_single_file(tmp_path: Path) -> None:
    saved(tmp_path, LlamaConfig(**SIZES))
    names = dict.fromkeys(load_file(tmp_path / models.SINGLE), models.SINGLE)
    (tmp_path / models.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    check_model(str(tmp_path))
    check_weights(str(tmp_path))


@pytest.mark.parametrize("single", [True, False], ids=["one file", "shards"])
@pytest.mark.parametrize("adapter", [False, True], ids=["configuration alone", "with the adapter"])
def test_what_is_left_of_an_adapter_beside_merged_weights(adapter: bool, single: bool, tmp_path: Path) -> None:
    base = saved(tmp_path / "base", LlamaConfig(**SIZES))
    merged = saved(tmp_path / "merged", LlamaConfig(**SIZES))
    (merged / CONFIG).write_text(json.dumps({"base_model_name_or_path": str(base), "r": 4}))
    if adapter:
        save_file({"a": torch.zeros(1)}, merged / WEIGHTS)
    if not single:
        (merged / models.SINGLE).rename(merged / "model-00001-of-00001.safetensors")
        (merged / models.INDEX).write_text("{}")
    with pytest.raises(DataError, match=r"beside it are the weights of a whole model \(model.safetensors"):
        check_model(str(merged))


def test_what_transformers_warns_of_reaches_the_user_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here of a key of config.json that it does not read."""
    monkeypatch.setattr(models, "SAID", set())
    saved(tmp_path, LlamaConfig(**SIZES))
    stated(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "beta": 3.0})
    handlers = list(logging.getLogger("transformers").handlers)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load_module(str(tmp_path), "float32")
    assert logging.getLogger("transformers").handlers == handlers
    (said,) = (text for text in caplog.messages if "transformers warns" in text)
    assert str(tmp_path) in said
    assert "{'beta'}" in said


@pytest.mark.parametrize("propagate", [False, True])  # transformers' logger propagates where the environment has CI
def test_what_is_refused_anyway_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, propagate: bool
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", propagate)
    one_layer_fewer(tmp_path)
    with pytest.raises(DataError, match="has 9 weights"):
        load_module(str(tmp_path), "float32")
    assert not caplog.messages


#: A model of each kind of RoPE that transformers has, with the length up to which its rows are independent.
ROPES: dict[str, tuple[dict[str, Any], int]] = {
    "default": ({}, 64),
    "linear": ({"factor": 4.0}, 64),
    "dynamic": ({"factor": 4.0}, 64),
    "yarn": ({"factor": 4.0, "original_max_position_embeddings": 32}, 128),
    "longrope": ({"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": 32}, 32),
    "llama3": (
        {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}, 128
    ),
    "proportional": ({"partial_rotary_factor": 0.5}, 64),
}  # fmt: skip


def test_every_kind_of_rope_is_known() -> None:
    assert set(ROPES) == {"default", *ROPE_INIT_FUNCTIONS}


@torch.no_grad()
@pytest.mark.parametrize("kind", ROPES)
def test_scores_do_not_depend_on_the_longest_row(kind: str, tmp_path: Path) -> None:
    settings, limit = ROPES[kind]
    rope = {"rope_type": kind, "rope_theta": 10_000.0, **settings}
    module = load_module(str(saved(tmp_path, LlamaConfig(**SIZES, rope_parameters=rope))), "float32").eval()
    context = context_of(module.config)
    assert context is not None
    assert context.tokens == limit
    ids = torch.arange(4 * limit).remainder(31).unsqueeze(0)

    def beside(longest: int) -> torch.Tensor:
        """Logits of a short row in a batch with a longer one."""
        rows = ids[:, :longest].repeat(2, 1)
        return module(input_ids=rows, use_cache=False).logits[0, :16]

    torch.testing.assert_close(beside(limit), beside(16), atol=1e-5, rtol=0)
    if kind in ("dynamic", "longrope"):  # the reason for the limit
        assert f"beyond it, {kind} scores each row by the longest one of its batch" in context.limit
        assert (beside(4 * limit) - beside(16)).abs().max() > 1e-4


#: Layers that mix tokens in other ways, and kinds of RoPE for each kind of layer; with the limit of independent rows.
MIXED: dict[str, tuple[dict[str, Any], int]] = {
    "qwen3_5_text": (
        {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
         "layer_types": ["linear_attention", "full_attention"]}, 64,
    ),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, 64),
    "minimax_m2": ({"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 8}, 64),
    "gemma3_text": (
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "rope_parameters": {
            "full_attention": {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4,
                               "long_factor": [3.0] * 4, "original_max_position_embeddings": 32},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}, 32,
    ),
    "beam": ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}, 64),  # one kind has no RoPE
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("kind", MIXED)
def test_rows_of_other_layers_do_not_depend_on_the_longest_one(kind: str, tmp_path: Path) -> None:
    settings, limit = MIXED[kind]
    config = AutoConfig.for_model(kind, **{**SIZES, **settings})
    module = load_module(str(saved(tmp_path, config)), "float32").eval()
    context = context_of(module.config)
    assert context is not None
    assert context.tokens == limit
    ids = torch.arange(limit).remainder(31).unsqueeze(0)
    alone, beside = (
        module(input_ids=ids[:, :longest].repeat(2, 1), use_cache=False).logits[0, :16] for longest in (16, limit)
    )
    torch.testing.assert_close(beside, alone, atol=1e-5, rtol=0)


#: Models that read a text as a whole, as for embeddings, though they load as language models.
WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "a decoder made an encoder": ("llama", {"is_causal": False}),
    "an embedding model": ("gemma3_text", {"use_bidirectional_attention": True}),
    "an encoder": ("bert", {}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_that_reads_what_follows_a_token_is_refused(name: str, tmp_path: Path) -> None:
    """A short row beside a longer one would have other scores, and a teacher would score a token by those after it."""
    kind, settings = WHOLE[name]
    saved(tmp_path, AutoConfig.for_model(kind, **SIZES, **settings))
    tiny.tokenizer().save_pretrained(tmp_path)
    with pytest.raises(DataError, match=rf"teacher\.model_name: models of type '{kind}' read what follows a token"):
        load_model(str(tmp_path), role="teacher", dtype="float32", device=torch.device("cpu"), master_weights=False)
    check_causal(load_module(str(saved(tmp_path / "causal", LlamaConfig(**SIZES))), "bfloat16"))
