"""The Qwen3 architecture: the numbers in config.json, and the tensors that a Hugging Face folder stores for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nemo_uecr.data.models import DecoderSizes, decoder_sizes
from nemo_uecr.errors import CheckpointError, DataError
from nemo_uecr.files import read_object

ARCHITECTURE = "Qwen3ForCausalLM"
#: The tensors of a layer in the Hugging Face model.
LAYER = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip


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


def hf_names(model: Qwen3) -> list[str]:
    """Every tensor of the Hugging Face model, in its own order."""
    layers = [f"model.layers.{layer}.{name}.weight" for layer in range(model.layers) for name in LAYER]
    head = [] if model.tied else ["lm_head.weight"]
    return ["model.embed_tokens.weight", *layers, "model.norm.weight", *head]
