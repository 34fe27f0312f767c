"""A model's sizes, and the parameters, bytes and FLOPs that follow from them on each rank.

Tests compare the formulas with real tensors.

Shape legend: V = vocabulary, H = hidden size, F = feed-forward size, L = layers, D = dimension of a head, T = tokens of
a micro-batch on one rank; of a mixture of experts, E = experts of a layer, k = experts of a token, W = feed-forward
size of an expert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nemo_uecr.conversion.reading import rope_of
from nemo_uecr.errors import DataError
from nemo_uecr.files import read_object
from nemo_uecr.generation.adapter import config_place
from nemo_uecr.generation.models import MIXTURES, DecoderSizes, cached, decoder_sizes, expert_count, has_hub_form
from nemo_uecr.nemo.layout import Parallel

DENSE = ("llama", "qwen2", "qwen3")
ARCHITECTURES = (*DENSE, *MIXTURES)  # decoders whose parameters the formulas below count
ROPES = ("default", "llama3")  # scalings of rotary embeddings whose models state their own positions
BF16, FP32, INT64, FP64 = 2, 4, 8, 8
ADAM = 2 * FP32 + BF16  # precision-aware FusedAdam: two moments, and the half of float32 weights that bfloat16 lacks


@dataclass(frozen=True, kw_only=True)
class ModelShape(DecoderSizes):
    """Sizes of a decoder with grouped-query attention and a gated feed-forward layer, or experts in its place."""

    qk_norm: bool  # whether queries and keys are normalised (Qwen3)
    qkv_bias: bool  # whether queries, keys and values have a bias (Qwen2)
    output_bias: bool  # whether the attention's output has one
    positions: int  # longest sequence that the model supports; 0: not stated
    rope: str = "default"  # how its rotary embeddings are scaled


# The `-Base` models have the same sizes but 32,768 positions; the later mixtures have 262,144.
KNOWN = {
    f"Qwen/Qwen3-{name}": ModelShape(
        vocabulary=151_936, hidden=hidden, layers=layers, heads=heads, kv_heads=4 if width else 8, head_dim=128,
        feed_forward=feed_forward, tied=tied, qk_norm=True, qkv_bias=False, output_bias=False, positions=40_960,
        experts=128 if width else 0, experts_per_token=8 if width else 0, expert_width=width,
    )
    for name, hidden, layers, heads, feed_forward, tied, width in (
        ("0.6B", 1024, 28, 16, 3072, True, 0),
        ("1.7B", 2048, 28, 16, 6144, True, 0),
        ("4B", 2560, 36, 32, 9728, True, 0),
        ("8B", 4096, 36, 32, 12288, False, 0),
        ("14B", 5120, 40, 40, 17408, False, 0),
        ("32B", 5120, 64, 64, 25600, False, 0),
        ("30B-A3B", 2048, 48, 32, 6144, False, 768),
        ("235B-A22B", 4096, 94, 64, 12288, False, 1536),
    )
}  # fmt: skip
LATER = re.compile(r"-(Instruct|Thinking)-2507$")


def known(name: str) -> ModelShape | None:
    """Sizes of a hub's model that is in the table; None for another."""
    if (found := KNOWN.get(name)) is not None:
        return found
    if (base := KNOWN.get(name.removesuffix("-Base"))) is not None:
        return replace(base, positions=32_768)
    later = KNOWN.get(LATER.sub("", name))
    return None if later is None or not later.experts else replace(later, positions=262_144)


def shape_of(name: str, *, role: str) -> ModelShape:
    """Sizes of the model of section ``role``: a folder, one of `KNOWN`, or a model in the hub's cache."""
    name = config_place(name)
    file, in_table = Path(name).expanduser() / "config.json", known(name)
    if not file.is_file() and in_table is not None:
        return in_table
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
    kind, odd = values.get("model_type"), ["mlp_bias"] if values.get("mlp_bias") else []
    if kind not in MIXTURES and (count := expert_count(values)):
        odd.append(f"with {count} experts")
    if kind not in ARCHITECTURES or odd:
        raise DataError(
            f"{where} has model_type {' '.join([repr(kind), *odd])}, not one of {', '.join(ARCHITECTURES)} without "
            "biases in its feed-forward layers: only their parameters are counted"
        )
    bias, rope = bool(values.get("attention_bias")), rope_of(values)["rope_type"]
    return ModelShape(
        **vars(decoder_sizes(values, where)),
        qk_norm=kind in ("qwen3", *MIXTURES),
        qkv_bias=kind == "qwen2" or bias,
        output_bias=kind != "qwen2" and bias,
        positions=values.get("max_position_embeddings", 0) if rope in ROPES else 0,
        rope=rope,
    )


def layer_parameters(shape: ModelShape) -> int:
    """Parameters of one layer that every token reads: all but its experts.

    Attention, feed-forward or router, and biases and norms where it has them.
    """
    attention = shape.hidden * (2 * shape.query + 2 * shape.key_value)
    feed_forward = 0 if shape.experts else 3 * shape.hidden * shape.feed_forward
    bias = shape.query + 2 * shape.key_value if shape.qkv_bias else 0
    return attention + feed_forward + bias + _unsplit_parameters(shape)


def expert_parameters(shape: ModelShape) -> int:
    """Parameters of one expert of one layer: 3 H W."""
    return 3 * shape.hidden * shape.expert_width


def _unsplit_parameters(shape: ModelShape) -> int:
    """Those of a layer that every tensor rank holds whole: two norms, the heads' norms, output bias and router."""
    norms = 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)
    return norms + (shape.hidden if shape.output_bias else 0) + shape.hidden * shape.experts


def parameters(shape: ModelShape) -> int:
    """Parameters of the whole model; a tied output layer counts once."""
    return _with_experts(shape, shape.experts)


def active_parameters(shape: ModelShape) -> int:
    """Parameters that one token goes through, the embedding among them; all of a dense model."""
    return _with_experts(shape, shape.experts_per_token)


def _with_experts(shape: ModelShape, count: int) -> int:
    """Parameters of a model with so many experts in each layer."""
    tables = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    layer = layer_parameters(shape) + count * expert_parameters(shape)
    return tables + shape.layers * layer + shape.hidden


def routed_parameters(shape: ModelShape) -> int:
    """Parameters of all experts of all layers; 0 in a dense model."""
    return shape.layers * shape.experts * expert_parameters(shape)


def chosen_share(shape: ModelShape, tokens: int) -> float:
    """Share of a layer's experts that a batch of tokens is expected to choose: 1 - (1 - k / E)^tokens.

    As if each token chose k of the E at random: a router that favours some experts reads fewer.
    """
    return 1.0 - (1.0 - shape.experts_per_token / shape.experts) ** tokens if shape.experts else 1.0


def kv_token_bytes(shape: ModelShape, tensor: int, width: int) -> int:
    """Keys and values of one token on one rank: 2 L max(1, heads / tensor) D values of `width` bytes."""
    return 2 * shape.layers * max(1, shape.kv_heads // tensor) * shape.head_dim * width


def forward_flops(shape: ModelShape, length: int) -> float:
    """FLOPs per token of a forward pass over sequences of `length`: 2 (body + head) + 2 query width L length.

    Every matrix product costs 2 per parameter, of k experts in each layer of a mixture; causal attention reads half of
    the sequence on average.
    """
    body = shape.layers * (layer_parameters(shape) + shape.experts_per_token * expert_parameters(shape))
    return 2.0 * (body + shape.vocabulary * shape.hidden) + 2.0 * shape.layers * shape.query * length


@dataclass(frozen=True)
class Adapter:
    """LoRA on the linear layers of these of Megatron's names, with this rank: r (in + out) parameters for each."""

    rank: int
    layers: frozenset[str]

    def parameters(self, shape: ModelShape, layers: int, *, last: bool) -> int:
        """Those of so many layers, and of the output layer where the ``last`` stage has it."""
        found = _linear_layers(shape)
        output = found.pop("output_layer") if last and "output_layer" in self.layers else 0
        return self.rank * (layers * sum(found.get(name, 0) for name in self.layers) + output)


def _linear_layers(shape: ModelShape) -> dict[str, int]:
    """Inputs plus outputs of the linear layers of a dense model, by Megatron's names."""
    return {
        "linear_qkv": shape.hidden + shape.query + 2 * shape.key_value,
        "linear_proj": shape.query + shape.hidden,
        "linear_fc1": shape.hidden + 2 * shape.feed_forward,
        "linear_fc2": shape.feed_forward + shape.hidden,
        "output_layer": shape.hidden + shape.vocabulary,
    }


def adapter_of(shape: ModelShape, peft: Mapping[str, Any]) -> Adapter | None:
    """What NeMo-RL's section ``peft`` adapts; None where all weights are trained, or in a mixture, whose are not known.

    Without ``target_modules`` Megatron-Bridge adapts every linear layer. A pattern such as ``*.layers.0.*`` counts as
    every layer, an upper bound.
    """
    if not peft.get("enabled") or shape.experts:
        return None
    every = _linear_layers(shape).keys()
    named = set(peft.get("target_modules") or every)
    plain = named if named <= every else every
    return Adapter(int(peft["dim"]), frozenset(plain) - set(peft.get("exclude_modules") or ()))


@dataclass(frozen=True)
class Sharded:
    """A model split over its GPUs by a layout: what one rank holds."""

    shape: ModelShape
    parallel: Parallel
    gpus: int
    adapter: Adapter | None = None  # what is trained; None: all weights

    @property
    def data(self) -> int:
        """Data-parallel copies."""
        return self.gpus // self.parallel.ranks

    @property
    def sharing(self) -> int:
        """Data- and context-parallel ranks, which share the optimizer of all but experts."""
        return self.data * self.parallel.context

    @property
    def expert_sharing(self) -> int:
        """Ranks that hold the same experts, and share their optimizer."""
        return self.gpus // self.parallel.expert_ranks

    def place(self, rank: int) -> tuple[int, int, int, int]:
        """Coordinates of a rank: tensor, which Megatron numbers fastest, context, data and pipeline."""
        rest, tensor = divmod(rank, self.parallel.tensor)
        rest, context = divmod(rest, self.parallel.context)
        pipeline, data = divmod(rest, self.data)
        return tensor, context, data, pipeline

    def expert_place(self, rank: int) -> int:
        """Which part of the experts a rank holds: Megatron numbers expert tensor ranks fastest, then expert ranks."""
        return rank // self.parallel.expert_tensor % self.parallel.expert

    def layers(self, stage: int) -> range:
        """Layers of a pipeline stage; `plan.faults` has refused a layout that cannot share them."""
        counts = self.parallel.stages(self.shape.layers) or []
        return range(sum(counts[:stage]), sum(counts[: stage + 1]))

    @property
    def columns(self) -> int:
        """Vocabulary columns of a tensor rank, padding included."""
        return -(-self.shape.vocabulary // self.parallel.tensor)

    def parameters(self, stage: int) -> int:
        """Parameters of a rank of a pipeline stage."""
        return self.shared_parameters(stage) + self.expert_parameters(stage)

    def expert_parameters(self, stage: int) -> int:
        """Parameters of a stage's experts on a rank: E / expert ranks of each layer, cut by expert tensor ranks."""
        layer = self.shape.experts * expert_parameters(self.shape)
        return len(self.layers(stage)) * layer // (self.parallel.expert * self.parallel.expert_tensor)

    def shared_parameters(self, stage: int) -> int:
        """Parameters of a rank of a pipeline stage but its experts.

        Norms, output bias and router are whole on every tensor rank; matrices and the vocabulary are split. A tied
        output layer is the embedding itself with one stage, and a copy of it on the last of several.
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

    def trained_parameters(self, stage: int) -> tuple[int, int]:
        """Trained parameters of a rank of a stage: all but experts, and experts. Tensor ranks share an adapter's."""
        if self.adapter is None:
            return self.shared_parameters(stage), self.expert_parameters(stage)
        last = stage == self.parallel.pipeline - 1
        return self.adapter.parameters(self.shape, len(self.layers(stage)), last=last) // self.parallel.tensor, 0

    def optimizer_bytes(self, stage: int) -> int:
        """The precision-aware optimizer: 10 bytes per trained parameter, over the ranks that hold the same ones."""
        shared, experts = self.trained_parameters(stage)
        return ADAM * shared // self.sharing + ADAM * experts // self.expert_sharing

    def reduced_bytes(self, stage: int, gradient: int) -> float:
        """Bytes a rank sends for an optimizer step: gradients of so many bytes each, and bfloat16 weights back."""
        both = zip(self.trained_parameters(stage), (self.sharing, self.expert_sharing), strict=True)
        return sum((gradient + BF16) * held * (ranks - 1) / ranks for held, ranks in both)

    @property
    def most_layers(self) -> int:
        """Layers of the longest pipeline stage."""
        return max(len(self.layers(stage)) for stage in range(self.parallel.pipeline))

    def summed_bytes(self, tokens: int) -> float:
        """Bytes a tensor rank sends in a stage's forward: 2 H (tensor - 1) / tensor per layer and token.

        Four times in a dense layer, twice in one with experts, which tensor ranks do not cut.
        """
        layers, tensor, times = self.most_layers, self.parallel.tensor, 2.0 if self.shape.experts else 4.0
        return times * layers * BF16 * self.shape.hidden * tokens * (tensor - 1) / tensor

    def dispatched_bytes(self, tokens: int) -> float:
        """Bytes a rank sends in a stage's forward so that its tokens meet their experts, and for the way back.

        2 x 2 H k (expert - 1) / expert per layer and token; the tensor ranks of a sequence-parallel layer share them.
        """
        parallel, shape = self.parallel, self.shape
        copies = tokens * shape.experts_per_token / (parallel.tensor if parallel.sequence else 1)
        away = (parallel.expert - 1) / parallel.expert
        return 2.0 * self.most_layers * BF16 * shape.hidden * copies * away

    def residual_bytes(self, tokens: int) -> int:
        """The hidden states between two layers; sequence parallelism splits them over the tensor ranks."""
        return BF16 * self.shape.hidden * tokens // (self.parallel.tensor if self.parallel.sequence else 1)

    def gathered_bytes(self, tokens: int) -> int:
        """The input that a sequence-parallel output layer gathers: 2 H T, kept until the model leaves the GPU."""
        return BF16 * self.shape.hidden * tokens if self.parallel.sequence else 0

    @property
    def feed_forward_width(self) -> int:
        """Values per token that a feed-forward layer keeps: gate, input and their product, 3 F.

        Of a mixture a copy of the token for each of its experts beside those of k experts, k (H + 3 W).
        """
        shape = self.shape
        copies = shape.experts_per_token * (shape.hidden + 3 * shape.expert_width)
        return copies if shape.experts else 3 * shape.feed_forward

    def kept_bytes(self, tokens: int) -> int:
        """What one fused Megatron layer keeps for backward: 4 H + (3 query + 3 key-value width + 3 F) / tensor.

        Two residuals and two normalised inputs; projected and normalised queries and keys, values, the attention's
        output; the gate, the feed-forward input and their product, or the copies that went to experts.
        """
        cut = 3 * self.shape.query + 3 * self.shape.key_value + self.feed_forward_width
        return 4 * self.residual_bytes(tokens) + BF16 * tokens * cut // self.parallel.tensor

    def forward_bytes(self, tokens: int) -> int:
        """The peak of a layer without gradient: residual, norm, and the wider of attention and feed-forward."""
        widest = max(2 * self.shape.query + 2 * self.shape.key_value, self.feed_forward_width)
        return 2 * self.residual_bytes(tokens) + BF16 * tokens * widest // self.parallel.tensor

    def routes_bytes(self, tokens: int) -> int:
        """What the layers' dispatchers keep of a forward until the model leaves: (8 E + E + 8 k) L T bytes.

        Probabilities in the router's float64, where each token went, and its place among the copies.
        """
        shape = self.shape
        each = (FP64 + 1) * shape.experts + INT64 * shape.experts_per_token
        return self.most_layers * each * tokens // (self.parallel.tensor if self.parallel.sequence else 1)

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
