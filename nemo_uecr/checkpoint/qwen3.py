"""The Qwen3 architecture: the numbers in config.json, and the tensors that either format stores for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.models import DecoderSizes, Fields, decoder_sizes, read_fields
from nemo_uecr.errors import CheckpointError

ARCHITECTURE = "Qwen3ForCausalLM"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Qwen3(DecoderSizes):
    """The architecture, as config.json states it."""

    rope_theta: float
    norm_eps: float


def read_qwen3(folder: Path) -> Qwen3:
    """The architecture of a Hugging Face folder."""
    path = folder / "config.json"
    fields = read_fields(path, prefix="")
    names = fields.values.get("architectures")
    if names != [ARCHITECTURE]:
        raise CheckpointError(f"{path}: architectures is {names!r:.80}; expected [{ARCHITECTURE!r}]")
    fields.stated("head_dim")
    sizes = decoder_sizes(fields)
    return Qwen3(**vars(sizes), rope_theta=_rope_theta(fields), norm_eps=fields.number("rms_norm_eps"))


def _rope_theta(fields: Fields) -> float:
    """From where transformers 4 writes it, or where transformers 5 does."""
    rope = fields.section("rope_parameters") or fields.section("rope_scaling")
    if rope is None:
        return fields.number("rope_theta")
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"{fields.where}: rotary embeddings are scaled ({kind!s:.60}); expected plain ones")
    return rope.number("rope_theta") if "rope_theta" in rope.values else fields.number("rope_theta")


def hf_shapes(model: Qwen3) -> Shapes:
    """Name and shape of every tensor of the Hugging Face model, in its own order."""
    shapes: Shapes = {"model.embed_tokens.weight": (model.vocabulary, model.hidden)}
    queries, keys = model.query, model.key_value
    for layer in range(model.layers):
        within: Shapes = {
            "self_attn.q_proj.weight": (queries, model.hidden),
            "self_attn.k_proj.weight": (keys, model.hidden),
            "self_attn.v_proj.weight": (keys, model.hidden),
            "self_attn.o_proj.weight": (model.hidden, queries),
            "self_attn.q_norm.weight": (model.head_dim,),
            "self_attn.k_norm.weight": (model.head_dim,),
            "mlp.gate_proj.weight": (model.feed_forward, model.hidden),
            "mlp.up_proj.weight": (model.feed_forward, model.hidden),
            "mlp.down_proj.weight": (model.hidden, model.feed_forward),
            "input_layernorm.weight": (model.hidden,),
            "post_attention_layernorm.weight": (model.hidden,),
        }
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in within.items()}
    shapes["model.norm.weight"] = (model.hidden,)
    if not model.tied:
        shapes["lm_head.weight"] = (model.vocabulary, model.hidden)
    return shapes


def megatron_shapes(model: Qwen3) -> Shapes:
    """Name and shape of every tensor of Megatron's distributed checkpoint, the layers stacked in front."""
    queries, keys = model.query, model.key_value
    layer: Shapes = {
        "self_attention.linear_qkv.weight": (queries + 2 * keys, model.hidden),
        "self_attention.linear_qkv.layer_norm_weight": (model.hidden,),
        "self_attention.linear_proj.weight": (model.hidden, queries),
        "self_attention.q_layernorm.weight": (model.head_dim,),
        "self_attention.k_layernorm.weight": (model.head_dim,),
        "mlp.linear_fc1.weight": (2 * model.feed_forward, model.hidden),
        "mlp.linear_fc1.layer_norm_weight": (model.hidden,),
        "mlp.linear_fc2.weight": (model.hidden, model.feed_forward),
    }
    shapes: Shapes = {f"decoder.layers.{name}": (model.layers, *shape) for name, shape in layer.items()}
    shapes["embedding.word_embeddings.weight"] = (model.vocabulary, model.hidden)
    shapes["decoder.final_layernorm.weight"] = (model.hidden,)
    if not model.tied:
        shapes["output_layer.weight"] = (model.vocabulary, model.hidden)
    return shapes
