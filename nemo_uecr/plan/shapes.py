"""A model's sizes, and the parameters, bytes and FLOPs that follow from them on each rank.

Tests compare the formulas with real tensors.

Shape legend: V = vocabulary, H = hidden size, F = feed-forward size, L = layers, D = dimension of a head, T = tokens of
a micro-batch on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_uecr.conversion.reading import rope_of
from nemo_uecr.errors import DataError
from nemo_uecr.files import read_object
from nemo_uecr.generation.adapter import config_place
from nemo_uecr.generation.models import DecoderSizes, cached, decoder_sizes, has_hub_form
from nemo_uecr.nemo.layout import Parallel

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # dense decoders whose parameters the formulas below count
ROPES = ("default", "llama3")  # scalings of rotary embeddings whose models state their own positions
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # keys of a config.json that is not dense
BF16, FP32, INT64 = 2, 4, 8
ADAM = 2 * FP32 + BF16  # precision-aware FusedAdam: two moments, and the half of float32 weights that bfloat16 lacks


@dataclass(frozen=True)
class ModelShape(DecoderSizes):
    """Sizes of a dense decoder with grouped-query attention and a gated feed-forward layer."""

    qk_norm: bool  # whether queries and keys are normalised (Qwen3)
    qkv_bias: bool  # whether queries, keys and values have a bias (Qwen2)
    output_bias: bool  # whether the attention's output has one
    positions: int  # longest sequence that the model supports; 0: not stated
    rope: str = "default"  # how its rotary embeddings are scaled


# The `-Base` models have the same sizes but 32,768 positions.
KNOWN = {
    f"Qwen/Qwen3-{name}": ModelShape(
        vocabulary=151_936, hidden=hidden, layers=layers, heads=heads, kv_heads=8, head_dim=128,
        feed_forward=feed_forward, tied=tied, qk_norm=True, qkv_bias=False, output_bias=False, positions=40_960,
    )
    for name, hidden, layers, heads, feed_forward, tied in (
        ("0.6B", 1024, 28, 16, 3072, True),
        ("1.7B", 2048, 28, 16, 6144, True),
        ("4B", 2560, 36, 32, 9728, True),
        ("8B", 4096, 36, 32, 12288, False),
        ("14B", 5120, 40, 40, 17408, False),
        ("32B", 5120, 64, 64, 25600, False),
    )
}  # fmt: skip


def shape_of(name: str, *, role: str) -> ModelShape:
    """Sizes of the model of section ``role``: a folder, one of `KNOWN`, or a model in the hub's cache."""
    name = config_place(name)
    file, known = Path(name).expanduser() / "config.json", KNOWN.get(name.removesuffix("-Base"))
    if not file.is_file() and known is not None:
        return replace(known, positions=32_768) if name.endswith("-Base") else known
    if not file.is_file():
        file = cached(name) or file
    if file.is_file():
        return shape_of_values(read_object(file), f"{role}.model_name: {file}")
    download = f" (hf download {name})" if has_hub_form(name) else ""
    raise DataError(
        f"{role}.model_name: got {name!r}, whose sizes are not known here; expected a folder with the model's "
        f"config.json, a model in the hub's cache{download}, or one of {', '.join(KNOWN)} and their -Base "
        "models (for a model that is yet to be made, name the one it is made from)"
    )


def shape_of_values(values: Mapping[str, Any], where: str) -> ModelShape:
    """Sizes of a model from the content of its `config.json`; messages name it ``where``."""
    kind, odd = values.get("model_type"), [key for key in (*EXPERTS, "mlp_bias") if values.get(key)]
    if kind not in ARCHITECTURES or odd:
        raise DataError(
            f"{where} has model_type {kind!r} {' '.join(odd)}; expected a dense model without biases in its "
            f"feed-forward layers, one of {', '.join(ARCHITECTURES)}: only their parameters are counted"
        )
    bias, rope = bool(values.get("attention_bias")), rope_of(values)["rope_type"]
    return ModelShape(
        **vars(decoder_sizes(values, where)),
        qk_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2" or bias,
        output_bias=kind != "qwen2" and bias,
        positions=values.get("max_position_embeddings", 0) if rope in ROPES else 0,
        rope=rope,
    )


def layer_parameters(shape: ModelShape) -> int:
    """Parameters of one layer: attention, feed-forward, and biases and norms where it has them."""
    attention = shape.hidden * (2 * shape.query + 2 * shape.key_value)
    feed_forward = 3 * shape.hidden * shape.feed_forward
    bias = shape.query + 2 * shape.key_value if shape.qkv_bias else 0
    return attention + feed_forward + bias + _unsplit_parameters(shape)


def _unsplit_parameters(shape: ModelShape) -> int:
    """Those of a layer that every tensor rank holds whole: two norms, the heads' norms and the output bias."""
    norms = 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)
    return norms + (shape.hidden if shape.output_bias else 0)


def parameters(shape: ModelShape) -> int:
    """Parameters of the whole model; a tied output layer counts once."""
    tables = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return tables + shape.layers * layer_parameters(shape) + shape.hidden


def kv_token_bytes(shape: ModelShape, tensor: int, width: int) -> int:
    """Keys and values of one token on one rank: 2 L max(1, heads / tensor) D values of `width` bytes."""
    return 2 * shape.layers * max(1, shape.kv_heads // tensor) * shape.head_dim * width


def forward_flops(shape: ModelShape, length: int) -> float:
    """FLOPs per token of a forward pass over sequences of `length`: 2 (body + head) + 2 query width L length.

    Every matrix product costs 2 per parameter; causal attention reads half of the sequence on average.
    """
    body = shape.layers * layer_parameters(shape)
    return 2.0 * (body + shape.vocabulary * shape.hidden) + 2.0 * shape.layers * shape.query * length


@dataclass(frozen=True)
class Sharded:
    """A model split over its GPUs by a layout: what one rank holds."""

    shape: ModelShape
    parallel: Parallel
    gpus: int

    @property
    def data(self) -> int:
        """Data-parallel copies."""
        return self.gpus // self.parallel.ranks

    @property
    def sharing(self) -> int:
        """Data- and context-parallel ranks, which share the optimizer."""
        return self.data * self.parallel.context

    def place(self, rank: int) -> tuple[int, int, int, int]:
        """Coordinates of a rank: tensor, which Megatron numbers fastest, context, data and pipeline."""
        rest, tensor = divmod(rank, self.parallel.tensor)
        rest, context = divmod(rest, self.parallel.context)
        pipeline, data = divmod(rest, self.data)
        return tensor, context, data, pipeline

    def layers(self, stage: int) -> range:
        """Layers of a pipeline stage."""
        each = self.shape.layers // self.parallel.pipeline
        return range(stage * each, (stage + 1) * each)

    @property
    def columns(self) -> int:
        """Vocabulary columns of a tensor rank, padding included."""
        return -(-self.shape.vocabulary // self.parallel.tensor)

    def parameters(self, stage: int) -> int:
        """Parameters of a rank of a pipeline stage.

        Norms and the output bias are whole on every tensor rank; matrices and the vocabulary are split. A tied output
        layer is the embedding itself with one stage, and a copy of it on the last of several.
        """
        shape, whole = self.shape, _unsplit_parameters(self.shape)
        layer = whole + (layer_parameters(shape) - whole) // self.parallel.tensor
        first, last = stage == 0, stage == self.parallel.pipeline - 1
        tables = first + (last and not (shape.tied and first))
        final_norm = shape.hidden if last else 0
        return len(self.layers(stage)) * layer + tables * self.columns * shape.hidden + final_norm

    @property
    def most_parameters(self) -> int:
        """Parameters of a rank of the fullest pipeline stage."""
        return max(self.parameters(stage) for stage in range(self.parallel.pipeline))

    @property
    def weight_bytes(self) -> int:
        """bfloat16 weights of a rank of the fullest pipeline stage."""
        return BF16 * self.most_parameters

    def optimizer_bytes(self, stage: int) -> int:
        """The precision-aware optimizer: 10 bytes per parameter, sharded over the data- and context-parallel ranks."""
        return ADAM * self.parameters(stage) // self.sharing

    def summed_bytes(self, tokens: int) -> float:
        """Bytes a tensor rank sends in a stage's forward: 2 H (tensor - 1) / tensor, four times per layer and token."""
        layers, tensor = self.shape.layers // self.parallel.pipeline, self.parallel.tensor
        return 4.0 * layers * BF16 * self.shape.hidden * tokens * (tensor - 1) / tensor

    def residual_bytes(self, tokens: int) -> int:
        """The hidden states between two layers; sequence parallelism splits them over the tensor ranks."""
        return BF16 * self.shape.hidden * tokens // (self.parallel.tensor if self.parallel.sequence else 1)

    def gathered_bytes(self, tokens: int) -> int:
        """The input that a sequence-parallel output layer gathers: 2 H T, kept until the model leaves the GPU."""
        return BF16 * self.shape.hidden * tokens if self.parallel.sequence else 0

    def kept_bytes(self, tokens: int) -> int:
        """What one fused Megatron layer keeps for backward: 4 H + (3 query + 3 key-value width + 3 F) / tensor.

        Two residuals and two normalised inputs; projected and normalised queries and keys, values, the attention's
        output; the gate, the feed-forward input and their product.
        """
        cut = 3 * self.shape.query + 3 * self.shape.key_value + 3 * self.shape.feed_forward
        return 4 * self.residual_bytes(tokens) + BF16 * tokens * cut // self.parallel.tensor

    def forward_bytes(self, tokens: int) -> int:
        """The peak of a layer without gradient: residual, norm, and the wider of attention and feed-forward."""
        widest = max(2 * self.shape.query + 2 * self.shape.key_value, 3 * self.shape.feed_forward)
        return 2 * self.residual_bytes(tokens) + BF16 * tokens * widest // self.parallel.tensor

    def checkpointed_bytes(self, stage: int, tokens: int) -> int:
        """Inputs of a stage's layers, kept for its micro-batches in flight: one for each stage from it to the last."""
        return (self.parallel.pipeline - stage) * len(self.layers(stage)) * self.residual_bytes(tokens)

    def train_logits_bytes(self, tokens: int, chunk: int) -> int:
        """NeMo-RL's chunked log-probability in training.

        bfloat16 logits and their gradient over all tokens, and for one chunk float32 logits and softmax beside two
        int64 one-hot tables: (2 + 2) T V + (4 + 4 + 8 + 8) chunk V, over the tensor ranks.
        """
        return (2 * BF16 * tokens + (2 * FP32 + 2 * INT64) * min(chunk, tokens)) * self.columns

    def scoring_logits_bytes(self, tokens: int, chunk: int, *, divided: bool) -> int:
        """Our scoring pass: bfloat16 logits, one chunk of them, and that chunk divided by a temperature."""
        return (BF16 * tokens + (2 if divided else 1) * BF16 * min(chunk, tokens)) * self.columns

    def reference_logits_bytes(self, tokens: int, chunk: int) -> int:
        """NeMo-RL's own scoring of the reference: bfloat16 logits, and three float32 buffers of a chunk."""
        return (BF16 * tokens + 3 * FP32 * min(chunk, tokens)) * self.columns
