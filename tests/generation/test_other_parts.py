"""What belongs to a model beside text weights: files that are no weights, and towers that text never trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3Config, LlamaConfig, MambaConfig

from nemo_uecr.errors import DataError
from nemo_uecr.generation.adapter import add_adapter
from nemo_uecr.generation.engines import load_module, load_tokens
from nemo_uecr.generation.models import save_pretrained
from tests.generation.test_weights_in_memory import SIZES
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


def test_layers_that_peft_cannot_adapt_give_one_line() -> None:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(DataError, match=r"every linear layer of MambaForCausalLM: .*student.lora_rank=0"):
        add_adapter(module, rank=2, alpha=4.0, seed=0)
