"""Parameter counts against transformers' own models, built without memory on the meta device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.plan.shapes import KNOWN, parameters, shape_of
from tests.plan.subjects import real_model

TINY = {
    "vocab_size": 77, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 40,
}  # fmt: skip
WHOLE = TINY | {"model_type": "qwen3", "tie_word_embeddings": False}


def counted(make: Callable[[], Any]) -> int:
    """Parameters of a real model."""
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make().parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("Qwen3", {"head_dim": 8, "attention_bias": True}),
        ("Qwen2", {}),
        ("Llama", {}),
        ("Llama", {"attention_bias": True}),
    ],
)
def test_every_parameter_is_counted(name: str, more: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    import transformers

    config = getattr(transformers, f"{name}Config")(**TINY, **more, tie_word_embeddings=tied)
    config.save_pretrained(tmp_path)
    found = counted(lambda: getattr(transformers, f"{name}ForCausalLM")(config))
    assert parameters(shape_of(str(tmp_path), role="student")) == found


def test_a_model_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--a--b" / "refs").mkdir(parents=True)
    (tmp_path / "models--a--b" / "refs" / "main").write_text("c0ffee")
    folder = tmp_path / "models--a--b" / "snapshots" / "c0ffee"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(WHOLE))
    assert shape_of("a/b", role="student") == shape_of(str(folder), role="student")
    with pytest.raises(DataError, match="hf download a/c"):
        shape_of("a/c", role="student")
    monkeypatch.chdir(tmp_path)
    Path("a/b").mkdir(parents=True)
    Path("a/b/config.json").write_text(json.dumps(WHOLE | {"num_hidden_layers": 9}))
    assert shape_of("a/b", role="student").layers == 9, "a folder of that name comes first"


@pytest.mark.parametrize("name", KNOWN)
def test_the_table_is_that_of_the_real_sizes(name: str) -> None:
    shape, base = KNOWN[name], shape_of(f"{name}-Base", role="student")
    assert parameters(shape) == parameters(base) == counted(lambda: real_model(shape))
    assert base.positions == 32_768


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        (WHOLE | {"num_experts": 128}, "num_experts; expected a dense model"),
        (None, r"teacher.model_name: got '.*expected a folder with the model's config.json"),
    ],
)
def test_a_model_that_cannot_be_counted_is_named(content: object, fault: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=fault):
        shape_of(str(tmp_path), role="teacher")
