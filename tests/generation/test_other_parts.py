"""What belongs to a model beside text weights: files that are no weights, and towers that text never trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    Gemma3Config,
    LlamaConfig,
    MambaConfig,
)

from nemo_uecr.errors import DataError
from nemo_uecr.generation import adapter, models
from nemo_uecr.generation.adapter import add_adapter
from nemo_uecr.generation.engines import load_module, load_tokens
from nemo_uecr.generation.models import save_pretrained
from tests.generation.test_weights_in_memory import SIZES, saved
from tests.local import tiny


def test_every_file_that_is_no_weight_survives_a_save(tmp_path: Path) -> None:
    """Also a save of what was loaded from such a save, as after a resume."""
    tokenizer = load_tokens(str(tiny.assets().student)).tokenizer
    kept = {"preprocessor_config.json", "processor_config.json", "LICENSE", "video_preprocessor_config.json"}
    left = {"pytorch_model.bin", "optimizer.pt", "state.json", "manifest.json", "adapter_config.json", ".gitattributes"}
    source = tmp_path / "source"
    AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).save_pretrained(source)
    for name in kept | left - {"adapter_config.json"}:
        (source / name).write_text("{}")
    first, second = tmp_path / "first", tmp_path / "second"
    for place, folder in ((source, first), (first, second)):
        folder.mkdir()
        save_pretrained(load_module(str(place), "float32"), tokenizer, folder)
        names = {path.name for path in folder.iterdir()}
        assert kept <= names
        assert not left & names
        assert "model.safetensors" in names


def test_files_of_a_model_on_the_hub_and_what_is_there_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, folder = tmp_path / "cache", tmp_path / "saved"
    for place in (there, folder):
        place.mkdir()
        (place / "generation_config.json").write_text(place.name)
    for name in ("config.json", "processor_config.json", "adapter_model.safetensors", "other.safetensors.index.json"):
        (there / name).write_text("{}")
    monkeypatch.setattr(models, "cached", {"owner/name": there / "config.json"}.get)
    models.keep_other_files("owner/name", folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "generation_config.json", "processor_config.json",
    ]  # fmt: skip
    assert (folder / "generation_config.json").read_text() == "saved"


def test_adapters_leave_the_tower_for_pictures_alone() -> None:
    pytest.importorskip("peft")
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config=SIZES, vision_config=vision | {"image_size": 28, "patch_size": 14}, mm_tokens_per_image=4
    )
    module = AutoModelForCausalLM.from_config(config)
    add_adapter(module, rank=2, alpha=4.0, seed=0)
    trained = [name for name, each in module.named_parameters() if each.requires_grad]
    assert len(trained) == 2 * 7 * SIZES["num_hidden_layers"]
    assert not [name for name in trained if "vision" in name or "projector" in name]


@pytest.mark.parametrize(("kind", "count"), [("llama", 14), ("modernbert-decoder", 13)])
def test_every_layer_of_a_model_for_text_alone_gets_an_adapter(kind: str, count: int) -> None:
    """Also of ModernBERT, whose output layer is what other families call their text model."""
    pytest.importorskip("peft")
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, pad_token_id=0))
    add_adapter(module, rank=2, alpha=4.0, seed=0)
    assert len([name for name, each in module.named_parameters() if each.requires_grad]) == 2 * count


VISION = {
    "hidden_size": 16, "intermediate_size": 32, "depth": 1, "num_hidden_layers": 1, "num_heads": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8, "patch_size": 4,
    "out_hidden_size": 16, "num_position_embeddings": 16,
}  # fmt: skip
TEXT: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "gemma4": {
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "hidden_size_per_layer_input": 4,
        "vocab_size_per_layer_input": 32, "num_kv_shared_layers": 0, "global_head_dim": 8,
    },
}  # fmt: skip


def save_with_a_tower(kind: str, folder: Path) -> Path:
    """A model for pictures and text as it is published: all its parts in one folder."""
    text = {**SIZES, **TEXT[kind], "tie_word_embeddings": True}
    audio = {"audio_config": None} if kind == "gemma4" else {}
    config = AutoConfig.for_model(kind, text_config=text, vision_config=VISION, tie_word_embeddings=True, **audio)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", TEXT)
def test_families_with_towers(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    module = load_module(str(save_with_a_tower(kind, tmp_path)), "float32")
    add_adapter(module, rank=2, alpha=4.0, seed=0)
    trained = [name for name, each in module.named_parameters() if each.requires_grad]
    assert trained
    assert not [name for name in trained if "visual" in name or "vision" in name]


def test_parts_that_transformers_leaves_out_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Qwen3.5 it loads the text alone, and a checkpoint is a model for text; Gemma 4 stays whole."""
    monkeypatch.setattr(models, "SAID", set())
    qwen = save_with_a_tower("qwen3_5", tmp_path / "qwen")
    tensors = load_file(qwen / models.SINGLE)
    save_file(tensors | {"mtp.fc.weight": torch.zeros(16, 32)}, qwen / models.SINGLE, metadata={"format": "pt"})
    pictures = sum(name.startswith("model.visual") for name in tensors)
    for _ in range(2):
        load_module(str(qwen), "float32")
    (said,) = (text for text in caplog.messages if "transformers leaves" in text)
    assert (
        f"transformers leaves {1 + pictures} weights out that Qwen3_5ForCausalLM has no use for (model.visual." in said
    )
    caplog.clear()
    load_module(str(save_with_a_tower("gemma4", tmp_path / "gemma")), "float32")
    load_module(str(saved(tmp_path / "llama", LlamaConfig(**SIZES))), "float32")
    assert not [text for text in caplog.messages if "transformers leaves" in text]


def test_parts_that_are_left_out_beneath_an_adapter_or_a_hub_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked for where the weights are: with the adapter's base, or in the hub's cache."""
    pytest.importorskip("peft")
    base, folder = save_with_a_tower("qwen3_5", tmp_path / "qwen"), tmp_path / "adapter"
    module = load_module(str(base), "float32")
    add_adapter(module, rank=2, alpha=4.0, seed=0)
    folder.mkdir()
    models.save_adapter(module, folder)
    load, cached = adapter.load_causal_lm, {"owner/name": base / "config.json"}.get
    monkeypatch.setattr(
        adapter, "load_causal_lm", lambda name, **given: load(name.replace("owner/name", str(base)), **given)
    )
    monkeypatch.setattr(models, "cached", cached)
    monkeypatch.setattr(models, "only_here", lambda name: True)
    for name in (str(folder), "owner/name"):
        monkeypatch.setattr(models, "SAID", set())
        caplog.clear()
        load_module(name, "float32")
        assert len([text for text in caplog.messages if "transformers leaves" in text]) == 1


def test_frequencies_that_older_models_store_are_no_lost_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Llamas of transformers 4.30 and before have them in their files; they are computed."""
    saved(tmp_path, LlamaConfig(**SIZES))
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    tensors = load_file(tmp_path / models.SINGLE) | {name: torch.ones(4)}
    save_file(tensors, tmp_path / models.SINGLE, metadata={"format": "pt"})
    module = load_module(str(tmp_path), "float32")
    assert not caplog.messages
    module._keys_to_ignore_on_load_unexpected = [r"model\.layers\.1\..*", "absent"]  # as of families with fewer layers
    assert models.left_out(module, tmp_path) == []


def test_layers_that_peft_cannot_adapt_give_one_line() -> None:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(DataError, match=r"every linear layer of MambaForCausalLM: .*student.lora_rank=0"):
        add_adapter(module, rank=2, alpha=4.0, seed=0)
