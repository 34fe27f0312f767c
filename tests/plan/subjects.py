"""Configurations, and models and tokenizers small enough to be made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_uecr.config.load import load_config, load_nemo_config
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.schema import Config
from nemo_uecr.plan.shapes import Grid, ModelShape
from tests.config.shipped import CONFIGS, DEMO

ALONE = Grid(1, 1, 1, 1, False)
SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 24, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
TINY: dict[str, Any] = {
    "vocabulary": 48, "hidden": 32, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 16, "feed_forward": 40,
    "tied": True, "qk_norm": True, "qkv_bias": False, "output_bias": False, "positions": 64,
}  # fmt: skip


def nemo(*changes: str) -> NemoConfig:
    """A run inside NeMo-RL."""
    given = ["teacher.model_name=Qwen/Qwen3-8B", "data.subset=null", *changes]
    return load_nemo_config(CONFIGS / "uecr_qwen3_4b.yaml", given)


def local(*changes: str) -> Config:
    """A run of the local back end."""
    return load_config(DEMO, changes).config


def tiny_shape(**changes: Any) -> ModelShape:
    """A Qwen3 small enough for real tensors."""
    return ModelShape(**(TINY | changes))


def save_model(folder: Path, *, shard: str = "1GB", **changes: Any) -> Path:
    """A real tiny Qwen3 with the demo's tokenizer, in weight files of at most that size."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**(SIZES | changes)))
    model.save_pretrained(folder, max_shard_size=shard)
    return save_tokenizer(folder)


def save_tokenizer(folder: Path) -> Path:
    """The demo's tokenizer, whose template knows the non-thinking mode."""
    from nemo_uecr.study.task import build_tokenizer

    build_tokenizer().save_pretrained(folder)
    return folder
