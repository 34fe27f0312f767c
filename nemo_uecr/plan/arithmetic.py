"""Bytes and FLOPs of one model part, as functions of sizes alone. The tests hold them against real tensors.

Shape legend: T = tokens of a micro-batch on one rank, V = vocabulary, H = hidden size, L = layers.
"""

from __future__ import annotations

from nemo_uecr.plan.shapes import ModelShape, layer_parameters
from nemo_uecr.plan.shards import Grid, stage_layers, stage_parameters

__all__ = [
    "BF16",
    "FP32",
    "checkpoint_bytes",
    "checkpointed_bytes",
    "forward_bytes",
    "forward_flops",
    "gathered_bytes",
    "kept_bytes",
    "kv_token_bytes",
    "local_kept_bytes",
    "local_logits_bytes",
    "optimizer_bytes",
    "reference_logits_bytes",
    "scoring_logits_bytes",
    "train_logits_bytes",
]

BF16, FP32, INT64 = 2, 4, 8
#: float32 master weights and Adam's two moments. TE's FusedAdam keeps 16-bit remainders of the weights: 2 less.
ADAM = 3 * FP32


def columns(shape: ModelShape, grid: Grid) -> int:
    """Vocabulary columns of a tensor rank, padding included."""
    return -(-shape.vocabulary // grid.tensor)


def optimizer_bytes(shape: ModelShape, grid: Grid, stage: int) -> int:
    """Megatron's distributed optimizer: 12 bytes a parameter, shared by the data- and context-parallel ranks."""
    return ADAM * stage_parameters(shape, grid, stage) // (grid.data * grid.context)


def checkpoint_bytes(count: int) -> int:
    """A Megatron checkpoint: bfloat16 weights, and the optimizer's 12 bytes a parameter."""
    return (BF16 + ADAM) * count


def kv_token_bytes(shape: ModelShape, tensor: int, width: int) -> int:
    """Keys and values of one token on one rank: 2 L max(1, heads / tensor) D values of `width` bytes."""
    return 2 * shape.layers * max(1, shape.kv_heads // tensor) * shape.head_dim * width


def residual_bytes(shape: ModelShape, grid: Grid, tokens: int) -> int:
    """The hidden states between two layers; sequence parallelism cuts them over the tensor ranks."""
    return BF16 * shape.hidden * tokens // (grid.tensor if grid.sequence else 1)


def gathered_bytes(shape: ModelShape, grid: Grid, tokens: int) -> int:
    """What a sequence-parallel output layer gathers before its product: 2 H T, on the last pipeline stage.

    Megatron keeps this buffer in the process until the model leaves the GPU.
    """
    return BF16 * shape.hidden * tokens if grid.sequence else 0


def kept_bytes(shape: ModelShape, grid: Grid, tokens: int) -> int:
    """What the backward pass of one fused Megatron layer keeps: 4 H + (3 query + 3 key-value width + 3 F) / tensor.

    Two residuals and two normalised inputs; projected and normalised queries and keys, values, the attention's
    output; the gate, the feed-forward input and their product.
    """
    cut = 3 * shape.query + 3 * shape.key_value + 3 * shape.feed_forward
    return 4 * residual_bytes(shape, grid, tokens) + BF16 * tokens * cut // grid.tensor


def forward_bytes(shape: ModelShape, grid: Grid, tokens: int) -> int:
    """The widest moment of a layer without gradient: residual, norm, and the wider of attention and feed-forward."""
    widest = max(2 * shape.query + 2 * shape.key_value, 3 * shape.feed_forward)
    return 2 * residual_bytes(shape, grid, tokens) + BF16 * tokens * widest // grid.tensor


def checkpointed_bytes(shape: ModelShape, grid: Grid, stage: int, tokens: int) -> int:
    """Inputs of a stage's layers, kept for its micro-batches in flight: one for each stage from here to the last."""
    flying = grid.pipeline - stage
    return flying * len(stage_layers(shape, grid, stage)) * residual_bytes(shape, grid, tokens)


def train_logits_bytes(shape: ModelShape, grid: Grid, tokens: int, chunk: int) -> int:
    """NeMo-RL's chunked log-probability in training.

    bfloat16 logits and their gradient over all tokens, and for one chunk float32 logits and softmax beside two int64
    one-hot tables: (2 + 2) T V + (4 + 4 + 8 + 8) chunk V, over the tensor ranks.
    """
    width = columns(shape, grid)
    return 2 * BF16 * tokens * width + (2 * FP32 + 2 * INT64) * min(chunk, tokens) * width


def scoring_logits_bytes(shape: ModelShape, grid: Grid, tokens: int, chunk: int, *, divided: bool) -> int:
    """Our scoring pass: bfloat16 logits, one chunk of them, and that chunk divided by a temperature."""
    width = columns(shape, grid)
    return BF16 * tokens * width + (2 if divided else 1) * BF16 * min(chunk, tokens) * width


def reference_logits_bytes(shape: ModelShape, grid: Grid, tokens: int, chunk: int) -> int:
    """NeMo-RL's own scoring of the reference: bfloat16 logits, and three float32 buffers of a chunk."""
    width = columns(shape, grid)
    return BF16 * tokens * width + 3 * FP32 * min(chunk, tokens) * width


def local_kept_bytes(shape: ModelShape, tokens: int, *, bfloat16: bool) -> int:
    """What the backward pass of one transformers layer keeps, all operations separate (a layer with heads' norms).

    float32: 6 H + 2 + 4 (query + key-value width) + 2 heads + key-value heads + 4 F values a token.
    bfloat16 computation with float32 weights: the residual and what the norms see stay float32, every matrix product
    has a bfloat16 copy of its input, and the weight matrices are copied too.
    """
    heads, groups = shape.heads, shape.kv_heads
    width = shape.query + shape.key_value
    if not bfloat16:
        return FP32 * tokens * (6 * shape.hidden + 2 + 4 * width + 2 * heads + groups + 4 * shape.feed_forward)
    values = 26 * shape.hidden + 8 + 10 * width + 8 * heads + 4 * groups + 8 * shape.feed_forward
    matrices = layer_parameters(shape) - 2 * shape.hidden - 2 * shape.head_dim
    return tokens * values + BF16 * matrices


def local_logits_bytes(shape: ModelShape, tokens: int, chunk: int, *, bfloat16: bool) -> int:
    """Training logits of the local back end, a chunk at a time: logits and gradient, with float32 rows beside bfloat16.

    Args:
        shape: the student.
        tokens: of a micro-batch.
        chunk: float32 bytes of the logits that are reduced at once.
        bfloat16: whether the forward computes in it.
    """
    logits = min(chunk, FP32 * tokens * shape.vocabulary)
    return logits + logits // 2 if bfloat16 else 2 * logits


def forward_flops(shape: ModelShape, length: int) -> float:
    """FLOPs a token of a forward pass over sequences of `length`: 2 (body + head) + 2 query width L length.

    Every matrix product costs 2 a parameter; causal attention reads half of the sequence on average.
    """
    body = shape.layers * layer_parameters(shape)
    return 2.0 * (body + shape.vocabulary * shape.hidden) + 2.0 * shape.layers * shape.query * length
