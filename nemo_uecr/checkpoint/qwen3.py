"""What a Qwen3 looks like on both sides: the numbers in config.json and the tensors that they call for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_uecr.errors import CheckpointError

ARCHITECTURE = "Qwen3ForCausalLM"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Qwen3:
    """The architecture, as config.json states it.

    Attributes:
        vocabulary: V, rows of the embedding.
        hidden: H.
        layers: number of layers.
        heads: query heads.
        kv_heads: key and value heads.
        head: size of a head.
        feed: size of the feed-forward layer.
        rope_theta: base of the rotary embedding.
        norm_eps: epsilon of the norms.
        tied: whether the output layer is the embedding.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    feed: int
    rope_theta: float
    norm_eps: float
    tied: bool


def read_qwen3(folder: Path) -> Qwen3:
    """The architecture of a Hugging Face folder.

    Raises:
        CheckpointError: no config.json, another architecture, or a number that is missing.
    """
    path = folder / "config.json"
    config = read_json(path)
    names = config.get("architectures")
    if names != [ARCHITECTURE]:
        raise CheckpointError(f"{path}: architectures is {names}; conversion knows [{ARCHITECTURE!r}] only")
    try:
        return Qwen3(
            vocabulary=int(config["vocab_size"]),
            hidden=int(config["hidden_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            kv_heads=int(config["num_key_value_heads"]),
            head=int(config["head_dim"]),
            feed=int(config["intermediate_size"]),
            rope_theta=_rope_theta(path, config),
            norm_eps=float(config["rms_norm_eps"]),
            tied=bool(config["tie_word_embeddings"]),
        )
    except KeyError as missing:
        raise CheckpointError(f"{path}: no {missing}; expected the complete config.json of a Qwen3") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: the file is missing or is no JSON object.
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; expected a complete folder") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: no JSON ({error}); expected a complete file") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: got a {type(found).__name__}; expected a JSON object")
    return found


def _rope_theta(path: Path, config: dict[str, Any]) -> float:
    """From where transformers 4 writes it, or where transformers 5 does."""
    rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"{path}: rotary embeddings are scaled ({kind}); conversion knows plain ones only")
    return float(rope["rope_theta"] if "rope_theta" in rope else config["rope_theta"])


def hf_shapes(model: Qwen3) -> Shapes:
    """Name and shape of every tensor of the Hugging Face model, in its own order."""
    shapes: Shapes = {"model.embed_tokens.weight": (model.vocabulary, model.hidden)}
    queries, keys = model.heads * model.head, model.kv_heads * model.head
    for layer in range(model.layers):
        within: Shapes = {
            "self_attn.q_proj.weight": (queries, model.hidden),
            "self_attn.k_proj.weight": (keys, model.hidden),
            "self_attn.v_proj.weight": (keys, model.hidden),
            "self_attn.o_proj.weight": (model.hidden, queries),
            "self_attn.q_norm.weight": (model.head,),
            "self_attn.k_norm.weight": (model.head,),
            "mlp.gate_proj.weight": (model.feed, model.hidden),
            "mlp.up_proj.weight": (model.feed, model.hidden),
            "mlp.down_proj.weight": (model.hidden, model.feed),
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
    queries, keys = model.heads * model.head, model.kv_heads * model.head
    layer: Shapes = {
        "self_attention.linear_qkv.weight": (queries + 2 * keys, model.hidden),
        "self_attention.linear_qkv.layer_norm_weight": (model.hidden,),
        "self_attention.linear_proj.weight": (model.hidden, queries),
        "self_attention.q_layernorm.weight": (model.head,),
        "self_attention.k_layernorm.weight": (model.head,),
        "mlp.linear_fc1.weight": (2 * model.feed, model.hidden),
        "mlp.linear_fc1.layer_norm_weight": (model.hidden,),
        "mlp.linear_fc2.weight": (model.hidden, model.feed),
    }
    shapes: Shapes = {f"decoder.layers.{name}": (model.layers, *shape) for name, shape in layer.items()}
    shapes["embedding.word_embeddings.weight"] = (model.vocabulary, model.hidden)
    shapes["decoder.final_layernorm.weight"] = (model.hidden,)
    if not model.tied:
        shapes["output_layer.weight"] = (model.vocabulary, model.hidden)
    return shapes
