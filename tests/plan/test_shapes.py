"""Parameter counts against transformers' own models, built without memory on the meta device."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.plan.shapes import KNOWN, active_parameters, chosen_share, known, parameters, shape_of
from tests.plan.subjects import real_model, tiny_shape

TINY = {
    "vocab_size": 77, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 40,
}  # fmt: skip
WHOLE = TINY | {"model_type": "qwen3", "tie_word_embeddings": False}
MIXTURE = WHOLE | {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
}  # fmt: skip


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
        ("Qwen3Moe", {"head_dim": 8, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12}),
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


def test_what_of_a_mixture_works_on_a_token() -> None:
    """The names of the models say it: 3 of 30 and 22 of 235 billion."""
    counts = {name: (parameters(KNOWN[name]), active_parameters(KNOWN[name])) for name in KNOWN if "A" in name}
    assert counts == {
        "Qwen/Qwen3-30B-A3B": (30_532_122_624, 3_353_032_704),
        "Qwen/Qwen3-235B-A22B": (235_093_634_560, 22_190_763_520),
    }
    dense = KNOWN["Qwen/Qwen3-8B"]
    assert parameters(dense) == active_parameters(dense)
    later = known("Qwen/Qwen3-30B-A3B-Thinking-2507")
    assert later is not None
    assert later.positions == 262_144
    assert known("Qwen/Qwen3-8B-Thinking-2507") is None


def test_a_batch_chooses_the_share_of_experts_that_random_draws_do() -> None:
    shape, draw = tiny_shape(experts=16, experts_per_token=4, expert_width=8), random.Random(0)
    for tokens in (1, 3, 12):
        drawn = [len({one for _ in range(tokens) for one in draw.sample(range(16), 4)}) for _ in range(4000)]
        assert sum(drawn) / 4000 / 16 == pytest.approx(chosen_share(shape, tokens), abs=0.01)
    assert chosen_share(tiny_shape(), 3) == 1.0


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        (WHOLE | {"num_experts": 128}, "model_type 'qwen3' with 128 experts, not one of"),
        (MIXTURE | {"model_type": "gpt_oss"}, "model_type 'gpt_oss' with 4 experts"),
        (
            MIXTURE | {"decoder_sparse_step": 2},
            "has decoder_sparse_step 2; expected 1, so that every layer has experts",
        ),
        (MIXTURE | {"moe_intermediate_size": None}, "does not state its expert_width"),
        (None, r"teacher.model_name: got '.*expected a folder with the model's config.json"),
    ],
)
def test_a_model_that_cannot_be_counted_is_named(content: object, fault: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=fault):
        shape_of(str(tmp_path), role="teacher")
