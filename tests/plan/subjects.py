"""Configurations for the doctor, with models small enough to be made here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nemo_uecr.config.load import load_config, load_nemo_config
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.schema import Config
from nemo_uecr.plan import doctor
from nemo_uecr.plan.machine import Finding

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"
NEMO = CONFIGS / "uecr_qwen3_4b.yaml"
GIVEN = ["teacher.model_name=Qwen/Qwen3-8B", "data.subset=null"]
SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 24, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip


def nemo(*changes: str) -> NemoConfig:
    """A run inside NeMo-RL."""
    return load_nemo_config(NEMO, [*GIVEN, *changes])


def local(*changes: str) -> Config:
    """A run of the local back end."""
    return load_config(CONFIGS / "local" / "demo.yaml", changes).config


def made(make: Callable[[], Finding | Iterable[Finding]]) -> list[Finding]:
    """What the doctor makes of a check: a refusal is a finding."""
    return list(doctor._made([("check", make)]))


def save_model(folder: Path, *, shard: str = "1GB", **changes: Any) -> Path:
    """A real tiny Qwen3 with the demo's tokenizer, in weight files of at most that size."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**(SIZES | changes)))
    model.save_pretrained(folder, max_shard_size=shard)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> Path:
    """The demo's tokenizer, whose template knows the non-thinking mode."""
    from nemo_uecr.study.task import build_tokenizer

    build_tokenizer().save_pretrained(folder)
    return folder


def change_tokenizer(folder: Path, old: str, new: str) -> None:
    """Rewrite a token of a saved tokenizer, in its vocabulary and its list of added tokens."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        if token["content"] == old:
            token["content"] = new
    vocabulary = content["model"]["vocab"]
    if old in vocabulary:
        vocabulary[new] = vocabulary.pop(old)
    path.write_text(json.dumps(content), encoding="utf-8")
