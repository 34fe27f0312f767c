"""Configurations, and models and tokenizers small enough to be made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_uecr.config.load import load_config
from nemo_uecr.config.recipes import load_recipe
from nemo_uecr.config.schema import Config
from nemo_uecr.nemo.layout import Job, Parallel
from nemo_uecr.plan.contents import Plan
from nemo_uecr.plan.shapes import ModelShape, Sharded
from nemo_uecr.start.recipe_form import accepted
from tests.config.shipped import CONFIGS, DEMO

TINY: dict[str, Any] = {
    "vocabulary": 48, "hidden": 32, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 16, "feed_forward": 40,
    "tied": True, "qk_norm": True, "qkv_bias": False, "output_bias": False, "positions": 64,
}  # fmt: skip


def nemo(*changes: str) -> Job:
    """A run inside NeMo-RL."""
    given = ["uecr.teacher.model_name=Qwen/Qwen3-8B", "uecr.data.subset=null", *changes]
    return accepted(load_recipe(CONFIGS / "uecr_qwen3_4b.yaml", given))


def local(*changes: str) -> Config:
    """A run of the local back end."""
    return load_config(DEMO, changes).config


def sizes_of(plan: Plan, phase: str) -> dict[str, int]:
    """Bytes of each part of a phase."""
    return {item.name: item.size for each in plan.phases if each.name == phase for item in each.device}


def tiny_shape(**changes: Any) -> ModelShape:
    """A Qwen3 small enough for real tensors."""
    return ModelShape(**(TINY | changes))


def split(shape: ModelShape, tensor: int = 1, pipeline: int = 1, data: int = 1, *, sequence: bool = False) -> Sharded:
    """A model over so many ranks of each kind."""
    parallel = Parallel(tensor=tensor, pipeline=pipeline, context=1, sequence=sequence)
    return Sharded(shape, parallel, tensor * pipeline * data)


def tiny_mixture(*, tensor: int = 1, pipeline: int = 1, expert: int = 1, gpus: int = 1, **changes: Any) -> Sharded:
    """The tests' tiny mixture over its GPUs, sequence-parallel where there are tensor ranks."""
    sizes = {"layers": 2, "tied": False, "experts": 4, "experts_per_token": 2, "expert_width": 24} | changes
    parallel = Parallel(tensor=tensor, pipeline=pipeline, context=1, sequence=tensor > 1, expert=expert)
    return Sharded(tiny_shape(**sizes), parallel, gpus)


def real_model(shape: ModelShape) -> Any:
    """Transformers' own model of these sizes."""
    import transformers

    name, experts = "Qwen3", {}
    if shape.experts:
        name = "Qwen3Moe"
        experts = {
            "num_experts": shape.experts, "num_experts_per_tok": shape.experts_per_token, "norm_topk_prob": True,
            "moe_intermediate_size": shape.expert_width,
        }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        intermediate_size=shape.feed_forward, tie_word_embeddings=shape.tied, max_position_embeddings=shape.positions,
        **experts,
    )  # fmt: skip
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def save_model(folder: Path, *, shard: str = "1GB", **changes: Any) -> Path:
    """A real tiny model with the demo's tokenizer, in weight files of at most that size."""
    sizes = {"vocabulary": 300, "layers": 1, "positions": 256} | changes
    real_model(tiny_shape(**sizes)).save_pretrained(folder, max_shard_size=shard)
    return save_tokenizer(folder)


def save_tokenizer(folder: Path) -> Path:
    """The demo's tokenizer, whose template knows the non-thinking mode."""
    from nemo_uecr.demo.task import build_tokenizer

    build_tokenizer().save_pretrained(folder)
    return folder
