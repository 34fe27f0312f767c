"""Device memory of each phase of a step inside NeMo-RL, and host memory of what sleeps meanwhile."""

from __future__ import annotations

from nemo_uecr.plan import arithmetic as bytes_of
from nemo_uecr.plan.arithmetic import BF16, FP32, INT64
from nemo_uecr.plan.records import GIB, Item
from nemo_uecr.plan.setting import Setting
from nemo_uecr.plan.shapes import ModelShape, parameters
from nemo_uecr.plan.shards import Grid, fullest_stage, stage_parameters

__all__ = [
    "checkpoint_item",
    "concurrent_responses",
    "host_items",
    "most_optimizer_bytes",
    "refit_items",
    "rollout_items",
    "student_scoring_items",
    "teacher_scoring_items",
    "train_items",
    "vllm_bytes",
    "weight_bytes",
]


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
    each = bytes_of.kv_token_bytes(setting.student, setting.config.rollout.tensor, BF16) * length
    return cache // each


def teacher_scoring_items(setting: Setting, teacher: ModelShape, grid: Grid) -> tuple[Item, ...]:
    """The frozen teacher: weights, one layer's activations, logits."""
    tokens = setting.config.scoring.tokens_per_microbatch // grid.context
    logits = bytes_of.scoring_logits_bytes(
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
    logits = bytes_of.scoring_logits_bytes(shape, grid, tokens, scoring.chunk_tokens, divided=divided)
    how = "bfloat16 over all tokens, one chunk again and divided by T_r"
    if setting.reference:
        logits = max(logits, bytes_of.reference_logits_bytes(shape, grid, tokens, scoring.chunk_tokens))
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
    layer = bytes_of.kept_bytes(shape, grid, tokens)
    if setting.config.student.activation_checkpointing:
        kept = bytes_of.checkpointed_bytes(shape, grid, stage, tokens)
        how = f"inputs of {shape.layers // grid.pipeline} layers x {grid.pipeline - stage} micro-batches in flight"
        # While a layer is computed again, its activations and their gradients are there.
        working, working_how = 2 * layer, "one layer computed again, with its gradients"
    else:
        kept = (grid.pipeline - stage) * (shape.layers // grid.pipeline) * layer
        how, working, working_how = "every layer's", layer, "gradients of one layer"
    logits = 0
    if stage == grid.pipeline - 1:
        logits = bytes_of.train_logits_bytes(shape, grid, tokens, setting.config.scoring.chunk_tokens)
    sharing = grid.data * grid.context
    items = [
        *_processes(setting),
        Item("student weights", BF16 * held, f"{held:,} parameters of stage {stage}, 2 bytes"),
        Item("gradients", FP32 * held, "float32 buffer, 4 bytes a parameter, on every data-parallel rank"),
        Item("optimizer", bytes_of.optimizer_bytes(shape, grid, stage), f"12 bytes a parameter over {sharing} ranks"),
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
    return Item(
        "checkpoint", bytes_of.checkpoint_bytes(count), f"{count:,} parameters, weights and optimizer, 14 bytes"
    )


def weight_bytes(shape: ModelShape, grid: Grid) -> int:
    """bfloat16 weights of a rank of the fullest pipeline stage."""
    return BF16 * fullest_stage(shape, grid)


def most_optimizer_bytes(setting: Setting) -> int:
    """The student's optimizer on a rank of the stage that has most of it."""
    shape, grid = setting.student, setting.grid
    return max(bytes_of.optimizer_bytes(shape, grid, stage) for stage in range(grid.pipeline))


def vllm_bytes(setting: Setting) -> int:
    """The student's weights on each rank of a vLLM engine."""
    return BF16 * parameters(setting.student) // setting.config.rollout.tensor


def _weights(role: str, shape: ModelShape, grid: Grid) -> Item:
    return Item(f"{role} weights", weight_bytes(shape, grid), f"{fullest_stage(shape, grid):,} parameters, 2 bytes")


def _layer(shape: ModelShape, grid: Grid, tokens: int) -> Item:
    return Item("activations", bytes_of.forward_bytes(shape, grid, tokens), f"one layer, {tokens} tokens, no gradient")


def _vllm_weights(setting: Setting) -> Item:
    how = f"2 bytes a parameter over {setting.config.rollout.tensor} ranks"
    return Item("vLLM weights", vllm_bytes(setting), how)


def _gathered(shape: ModelShape, grid: Grid, tokens: int) -> list[Item]:
    size = bytes_of.gathered_bytes(shape, grid, tokens)
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
