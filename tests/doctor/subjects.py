"""Subjects of the checks: from the shipped configurations, with models small enough to be made here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from nemo_uecr.doctor.subject import Subject, read_subject

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"
NEMO = CONFIGS / "uecr_qwen3_4b.yaml"
GIVEN = ["teacher.model_name=Qwen/Qwen3-8B", "data.subset=null"]
SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 24, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip


def nemo(*changes: str, **fields: Any) -> Subject:
    """A run inside NeMo-RL, with fields of the subject replaced."""
    return replace(read_subject(str(NEMO), [*GIVEN, *changes]), **fields)


def local(**fields: Any) -> Subject:
    """A run of the local back end, with fields of the subject replaced."""
    return replace(read_subject(str(CONFIGS / "local" / "demo.yaml"), []), **fields)


def save_model(folder: Path, *, shard: str | None = None, **changes: Any) -> Path:
    """A real tiny Qwen3 with the demo's tokenizer; `shard` is a size such as "10KB"."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**(SIZES | changes)))
    model.save_pretrained(folder, **({} if shard is None else {"max_shard_size": shard}))
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> Path:
    """The demo's tokenizer, whose template knows the non-thinking mode."""
    from nemo_uecr.demo.tokenizer import build_tokenizer

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
