"""Bytes and FLOPs: of one model part as a function of sizes alone, and of each phase of a step inside NeMo-RL.

The tests hold the formulas against real tensors.

Shape legend: T = tokens of a micro-batch on one rank, V = vocabulary, H = hidden size, L = layers.
"""

from __future__ import annotations

from nemo_uecr.plan.records import GIB, Item
from nemo_uecr.plan.setting import Setting
from nemo_uecr.plan.shapes import (
    Grid,
    ModelShape,
    fullest_stage,
    layer_parameters,
    parameters,
    stage_layers,
    stage_parameters,
)

__all__ = [
    "BF16",
    "FP32",
    "checkpoint_bytes",
    "checkpoint_item",
    "checkpointed_bytes",
    "concurrent_responses",
    "forward_bytes",
    "forward_flops",
    "gathered_bytes",
    "host_items",
    "kept_bytes",
    "kv_token_bytes",
    "local_kept_bytes",
    "local_logits_bytes",
    "most_optimizer_bytes",
    "optimizer_bytes",
    "reference_logits_bytes",
    "refit_items",
    "rollout_items",
    "scoring_logits_bytes",
    "student_scoring_items",
    "teacher_scoring_items",
    "train_items",
    "train_logits_bytes",
    "vllm_bytes",
    "weight_bytes",
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


# -- what lies on a device and in the host during each phase -------------------------------------------------------


def refit_items(setting: Setting) -> tuple[Item, ...]:
    """The student's weights beside vLLM's, and the largest tensor on its way; the optimizer is in host memory."""
    table = BF16 * setting.student.vocabulary * setting.student.hidden
    return (
        *_processes(setting),
        _weights("student", setting.student, setting.grid),
        _vllm_weights(setting),
        Item("largest tensor on its way", table, "the embedding, gathered whole, 2 bytes a value"),
    )


def rollout_items(setting: Setting) -> tuple[Item, ...]:
    """The share of the device that vLLM takes: weights, its largest batch, and what remains for keys and values."""
    weights = _vllm_weights(setting)
    share = int(setting.config.rollout.gpu_memory * setting.capacity)
    cache = max(0, share - weights.size - setting.efficiency.vllm_bytes)
    return (
        *_processes(setting),
        weights,
        Item("vLLM activations and graphs", setting.efficiency.vllm_bytes, "assumed"),
        Item("KV cache", cache, f"rest of rollout.gpu_memory = {setting.config.rollout.gpu_memory} of the device"),
    )


def concurrent_responses(setting: Setting, length: int) -> int:
    """Sequences of that length whose keys and values fit one engine at once."""
    cache = rollout_items(setting)[-1].size
    each = kv_token_bytes(setting.student, setting.config.rollout.tensor, BF16) * length
    return cache // each


def teacher_scoring_items(setting: Setting, teacher: ModelShape, grid: Grid) -> tuple[Item, ...]:
    """The frozen teacher: weights, one layer's activations, logits."""
    tokens = setting.config.scoring.tokens_per_microbatch // grid.context
    logits = scoring_logits_bytes(
        teacher, grid, tokens, setting.config.scoring.chunk_tokens, divided=False
    )  # fmt: skip
    return (
        _process_item(setting, 1 if setting.dedicated else setting.processes),
        _weights("teacher", teacher, grid),
        _layer(teacher, grid, tokens),
        *_gathered(teacher, grid, tokens),
        Item("logits", logits, "bfloat16 over all tokens, one chunk again"),
    )


def student_scoring_items(setting: Setting) -> tuple[Item, ...]:
    """Student at two temperatures, or the reference through NeMo-RL's own scoring: the larger of the two."""
    shape, grid, scoring = setting.student, setting.grid, setting.config.scoring
    tokens = scoring.tokens_per_microbatch // grid.context
    divided = setting.config.rollout.temperature != 1.0
    logits = scoring_logits_bytes(shape, grid, tokens, scoring.chunk_tokens, divided=divided)
    how = "bfloat16 over all tokens, one chunk again and divided by T_r"
    if setting.reference:
        logits = max(logits, reference_logits_bytes(shape, grid, tokens, scoring.chunk_tokens))
        how = "bfloat16 over all tokens, three float32 buffers of a chunk (reference)"
    return (
        *_processes(setting),
        _weights("student", shape, grid),
        _layer(shape, grid, tokens),
        *_gathered(shape, grid, tokens),
        Item("logits", logits, how),
    )


def train_items(setting: Setting) -> tuple[Item, ...]:
    """Weights, gradients, optimizer, activations and logits of the fullest pipeline stage."""
    stages = [_train_stage(setting, stage) for stage in range(setting.grid.pipeline)]
    return max(stages, key=lambda items: sum(item.size for item in items))


def _train_stage(setting: Setting, stage: int) -> tuple[Item, ...]:
    shape, grid, train = setting.student, setting.grid, setting.config.train
    tokens, held = train.tokens_per_microbatch // grid.context, stage_parameters(shape, grid, stage)
    layer = kept_bytes(shape, grid, tokens)
    if setting.config.student.activation_checkpointing:
        kept = checkpointed_bytes(shape, grid, stage, tokens)
        how = f"inputs of {shape.layers // grid.pipeline} layers x {grid.pipeline - stage} micro-batches in flight"
        # While a layer is computed again, its activations and their gradients are there.
        working, working_how = 2 * layer, "one layer computed again, with its gradients"
    else:
        kept = (grid.pipeline - stage) * (shape.layers // grid.pipeline) * layer
        how, working, working_how = "every layer's", layer, "gradients of one layer"
    logits = 0
    if stage == grid.pipeline - 1:
        logits = train_logits_bytes(shape, grid, tokens, setting.config.scoring.chunk_tokens)
    sharing = grid.data * grid.context
    items = [
        *_processes(setting),
        Item("student weights", BF16 * held, f"{held:,} parameters of stage {stage}, 2 bytes"),
        Item("gradients", FP32 * held, "float32 buffer, 4 bytes a parameter, on every data-parallel rank"),
        Item("optimizer", optimizer_bytes(shape, grid, stage), f"12 bytes a parameter over {sharing} ranks"),
        Item("activations", kept, how),
    ]
    if stage == grid.pipeline - 1:
        items += _gathered(shape, grid, tokens)
    # The logits are gone before the layers run backward, so the larger of the two counts.
    if logits > working:
        items.append(Item("logits", logits, "bfloat16 logits and gradient, one chunk in float32"))
    else:
        items.append(Item("layer at work", working, working_how))
    return tuple(items)


def host_items(setting: Setting) -> tuple[Item, ...]:
    """Host memory of a node while everything sleeps there but vLLM."""
    per_node = min(setting.grid.ranks, setting.config.cluster.gpus_per_node)
    weights, optimizer = weight_bytes(setting.student, setting.grid), most_optimizer_bytes(setting)
    items = [
        Item("student weights", per_node * weights, f"{per_node} ranks, 2 bytes a parameter"),
        Item("optimizer", per_node * optimizer, f"{per_node} ranks, 12 bytes a parameter, sharded"),
        Item("vLLM weights", per_node * vllm_bytes(setting), "copy of its sleep level 1"),
    ]
    if setting.reference:
        items.append(Item("reference weights", per_node * weights, "initial student, always in host memory"))
    if setting.teacher is not None and setting.teacher_grid is not None and not setting.dedicated:
        size = weight_bytes(setting.teacher, setting.teacher_grid)
        items.append(Item("teacher weights", per_node * size, f"{per_node} ranks, 2 bytes a parameter"))
    width = INT64 + 8 * FP32
    batch = setting.responses * setting.longest * width
    items.append(Item("batch on the driver", batch, f"token ids and 8 float32 columns, {width} bytes a token"))
    return tuple(items)


def checkpoint_item(setting: Setting) -> Item:
    """Disk space of one checkpoint."""
    count = parameters(setting.student)
    return Item("checkpoint", checkpoint_bytes(count), f"{count:,} parameters, weights and optimizer, 14 bytes")


def weight_bytes(shape: ModelShape, grid: Grid) -> int:
    """bfloat16 weights of a rank of the fullest pipeline stage."""
    return BF16 * fullest_stage(shape, grid)


def most_optimizer_bytes(setting: Setting) -> int:
    """The student's optimizer on a rank of the stage that has most of it."""
    shape, grid = setting.student, setting.grid
    return max(optimizer_bytes(shape, grid, stage) for stage in range(grid.pipeline))


def vllm_bytes(setting: Setting) -> int:
    """The student's weights on each rank of a vLLM engine."""
    return BF16 * parameters(setting.student) // setting.config.rollout.tensor


def _weights(role: str, shape: ModelShape, grid: Grid) -> Item:
    return Item(f"{role} weights", weight_bytes(shape, grid), f"{fullest_stage(shape, grid):,} parameters, 2 bytes")


def _layer(shape: ModelShape, grid: Grid, tokens: int) -> Item:
    return Item("activations", forward_bytes(shape, grid, tokens), f"one layer, {tokens} tokens, no gradient")


def _vllm_weights(setting: Setting) -> Item:
    how = f"2 bytes a parameter over {setting.config.rollout.tensor} ranks"
    return Item("vLLM weights", vllm_bytes(setting), how)


def _gathered(shape: ModelShape, grid: Grid, tokens: int) -> list[Item]:
    size = gathered_bytes(shape, grid, tokens)
    return [Item("gathered states", size, f"{tokens} tokens x {shape.hidden}, sequence parallel")] if size else []


def _processes(setting: Setting) -> list[Item]:
    """The processes of a GPU, and what a teacher that is off it may still hold."""
    items = [_process_item(setting, setting.processes)]
    if setting.teacher is not None and not setting.dedicated:
        limit = setting.config.teacher.offload_limit_mebi
        items.append(Item("teacher asleep", limit * GIB // 1024, f"at most, teacher.offload_limit_mebi = {limit}"))
    return items


def _process_item(setting: Setting, count: int) -> Item:
    return Item(
        "processes", count * setting.efficiency.process_bytes, f"{count} workers, CUDA context and NCCL; assumed"
    )
