"""The Qwen3 architecture: the numbers in config.json, and the tensors that either format stores for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.models import DecoderSizes, decoder_sizes
from nemo_uecr.errors import CheckpointError, DataError
from nemo_uecr.files import read_object

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
    values = read_object(path)
    if values.get("architectures") != [ARCHITECTURE]:
        raise CheckpointError(
            f"{path}: architectures is {values.get('architectures')!r:.80}; expected [{ARCHITECTURE!r}]"
        )
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}  # transformers 5, or 4
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"{path}: rotary embeddings are scaled ({kind!s:.60}); expected plain ones")
    theta, epsilon = rope.get("rope_theta", values.get("rope_theta")), values.get("rms_norm_eps")
    if theta is None or epsilon is None:
        raise DataError(f"{path} does not state rope_theta and rms_norm_eps; expected a whole config.json")
    return Qwen3(**vars(decoder_sizes(values, str(path))), rope_theta=float(theta), norm_eps=float(epsilon))


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
