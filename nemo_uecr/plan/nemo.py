"""The plan of a run inside NeMo-RL: memory and seconds of each phase, layout, faults, and what would fit.

Seconds are FLOPs, bytes read and bytes moved over assumed rates.

Shape legend: B = responses.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from nemo_uecr.config.schema import teacher_of
from nemo_uecr.errors import ConfigError
from nemo_uecr.plan.faults import layout_faults, mismatches_of, refuse
from nemo_uecr.plan.records import (
    DECODE_SHARE,
    DECODE_STEP,
    FORWARD_SHARE,
    GIB,
    PROCESS_BYTES,
    TRAIN_SHARE,
    VLLM_BYTES,
    Item,
    Phase,
    Plan,
    RankLine,
)
from nemo_uecr.plan.shapes import (
    ADAM,
    BF16,
    FP32,
    INT64,
    Sharded,
    forward_flops,
    grid_of,
    kv_token_bytes,
    parameters,
    shape_of,
)

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig
    from nemo_uecr.plan.records import Device, Lengths

__all__ = [
    "Setting",
    "nemo_plan",
    "other_placements",
    "response_lengths",
    "rollout",
    "setting_of",
    "variant",
    "what_fits",
]

ABSENT = "-"
"""In the layout, where a GPU holds nothing of a model."""

SUGGESTIONS = 3
"""At most, of changes after which a run fits."""

#: Seeded deals of a batch's responses to the engines, over which the slowest engine is averaged.
DEALS = 16


@dataclass(frozen=True)
class Setting:
    """A validated configuration with its models on their GPUs and the limits of its devices."""

    config: NemoConfig
    student: Sharded
    teacher: Sharded | None
    """None where the method reads no teacher."""

    device: Device
    lengths: Lengths

    @property
    def responses(self) -> int:
        """B."""
        return self.config.rollout.prompts_per_step * self.config.rollout.responses_per_prompt

    @property
    def capacity(self) -> int:
        """Bytes that each GPU offers."""
        return self.device.memory or 0

    @property
    def dedicated(self) -> bool:
        """Whether the teacher has GPUs of its own."""
        return self.config.teacher.dedicated_gpus > 0

    @property
    def where(self) -> str:
        """The GPUs of every phase but the teacher's."""
        return "student GPUs" if self.dedicated else "every GPU"

    @property
    def colocated_teacher(self) -> Sharded | None:
        """The teacher, where it shares the student's GPUs."""
        return None if self.dedicated else self.teacher

    @property
    def processes(self) -> int:
        """Worker processes on each student GPU: student, vLLM, and a colocated teacher."""
        return 2 if self.colocated_teacher is None else 3

    @property
    def replicas(self) -> int:
        """Independent vLLM engines."""
        return self.student.grid.ranks // self.config.rollout.tensor

    @property
    def reference(self) -> bool:
        """Whether the initial student is kept for the reference KL."""
        return self.config.loss.reference_kl > 0

    @property
    def vllm_bytes(self) -> int:
        """The student's weights on each rank of a vLLM engine."""
        return BF16 * parameters(self.student.shape) // self.config.rollout.tensor

    @property
    def optimizer_bytes(self) -> int:
        """The student's optimizer on a rank of the stage that has most of it."""
        return max(map(self.student.optimizer_bytes, range(self.student.grid.pipeline)))

    def flops(self, model: Sharded) -> float:
        """A forward over every prompt and response of a step."""
        whole = self.lengths.whole
        return forward_flops(model.shape, whole) * self.responses * whole

    def forward_seconds(self, model: Sharded) -> float:
        """That forward on the model's GPUs."""
        return self.flops(model) / (model.grid.ranks * self.device.flops * FORWARD_SHARE)


def setting_of(config: NemoConfig, device: Device, lengths: Lengths) -> Setting:
    """Look up the models' sizes and lay them out.

    Raises:
        ConfigError: a model cannot be placed or cut as the layout says.
        DataError: the sizes of a model are not known.
    """
    refuse(layout_faults(config, None, None))
    student, teacher = shape_of(config.student.model_name, role="student"), None
    if (name := teacher_of(config)) is not None:
        teacher = Sharded(shape_of(name, role="teacher"), grid_of(config.teacher.parallel, config.teacher_gpus))
    refuse(layout_faults(config, student, None if teacher is None else teacher.shape))
    placed = Sharded(student, grid_of(config.student.parallel, config.student_gpus))
    return Setting(config, placed, teacher, device, lengths)


def nemo_plan(config: NemoConfig, device: Device, lengths: Lengths) -> Plan:
    """Plan a validated configuration.

    Args:
        config: the run.
        device: limits of each GPU.
        lengths: mean tokens for the times.

    Raises:
        DataError: the sizes of a model are not known.
        ConfigError: a model cannot be placed or cut as the layout says.
    """
    setting = setting_of(config, device, lengths)
    student, teacher = setting.student, setting.teacher
    phases = [refit(setting), rollout(setting)]
    phases += [] if teacher is None else [score_teacher(setting, teacher)]
    phases += [*score_student(setting), train(setting)]
    mismatches = mismatches_of(config, student.shape, None if teacher is None else teacher.shape)
    count = parameters(student.shape)
    return Plan(
        title=_title(setting),
        hardware=f"{config.cluster.nodes} x {config.cluster.gpus_per_node} {device.name}, "
        f"{setting.capacity / GIB:.0f} GiB each that can be allocated",
        capacity=device.memory,
        layout=tuple(_layout(setting)),
        phases=tuple(phases),
        host=tuple(_host(setting)),
        checkpoint=Item("checkpoint", (BF16 + ADAM) * count, f"{count:,} parameters, weights and optimizer, 14 bytes"),
        facts=tuple(_facts(setting)),
        assumptions=_assumptions(setting),
        faults=(*_memory_faults(setting, phases), *mismatches),
        mismatches=mismatches,
    )


# -- phases of a step ------------------------------------------------------------------------------------------------


def refit(setting: Setting) -> Phase:
    """The optimizer leaves, vLLM's weights wake, and the student's are sent to them tensor by tensor."""
    student, device, vllm = setting.student, setting.device, setting.vllm_bytes
    table = BF16 * student.shape.vocabulary * student.shape.hidden
    items = (
        *_processes(setting),
        _weights("student", student),
        _vllm_weights(setting),
        Item("largest tensor on its way", table, "the embedding, gathered whole, 2 bytes a value"),
    )
    moved = setting.optimizer_bytes + student.weight_bytes + vllm
    seconds = moved / device.host_link + vllm / device.peer_link
    return Phase("refit", setting.where, items, seconds, f"{_gib(moved)} over the host link, {_gib(vllm)} between GPUs")


def rollout(setting: Setting) -> Phase:
    """The share of the device that vLLM takes; the slowest engine ends the phase, and the average one waits for it."""
    share = f"rest of rollout.gpu_memory = {setting.config.rollout.gpu_memory} of the device"
    items = (
        *_processes(setting),
        _vllm_weights(setting),
        Item("vLLM activations and graphs", VLLM_BYTES, "assumed"),
        Item("KV cache", cache_bytes(setting), share),
    )
    each = -(-setting.responses // setting.replicas)
    at_once = max(1, min(each, concurrent_responses(setting, setting.lengths.whole)))
    drawn = response_lengths(setting.lengths, setting.config.rollout.max_response_tokens, setting.responses)
    dealer, slowest, average = random.Random(0), 0.0, 0.0
    for _ in range(DEALS):
        dealer.shuffle(drawn)
        engines = [_engine_seconds(setting, drawn[one :: setting.replicas], at_once) for one in range(setting.replicas)]
        slowest += max(engines) / DEALS
        average += sum(engines) / len(engines) / DEALS
    how = f"{each} responses an engine, {at_once} at once; {average:,.1f} s on the average one, which then waits"
    seconds = slowest + setting.vllm_bytes / setting.device.host_link
    return Phase("rollout", setting.where, items, seconds, how, slowest - average)


def cache_bytes(setting: Setting) -> int:
    """What vLLM's share of the device leaves for keys and values."""
    share = int(setting.config.rollout.gpu_memory * setting.capacity)
    return max(0, share - setting.vllm_bytes - VLLM_BYTES)


def concurrent_responses(setting: Setting, length: int) -> int:
    """Sequences of that length whose keys and values fit one engine at once."""
    each = kv_token_bytes(setting.student.shape, setting.config.rollout.tensor, BF16) * length
    return cache_bytes(setting) // each


def response_lengths(lengths: Lengths, longest: int, count: int) -> list[float]:
    """Quantiles (i + 1/2) / count of min(exp(mu + sigma Z), longest), Z normal; mu gives them the stated mean."""
    spread = [lengths.sigma * NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    most = math.log(longest)
    low, high = math.log(lengths.response) - spread[-1], most - spread[0]
    for _ in range(60):
        middle = (low + high) / 2
        drawn = [math.exp(min(middle + one, most)) for one in spread]
        low, high = (middle, high) if sum(drawn) < count * lengths.response else (low, middle)
    return drawn


def _engine_seconds(setting: Setting, drawn: Sequence[float], at_once: int) -> float:
    """Every decoding step reads the weights once and the keys and values of the responses at work."""
    device, prompt = setting.device, setting.lengths.prompt
    shape, tensor = setting.student.shape, setting.config.rollout.tensor
    ends = [0.0] * at_once  # a response begins in the place that is free first
    for length in drawn:
        heapreplace(ends, ends[0] + length)
    token = kv_token_bytes(shape, tensor, BF16)
    read = max(ends) * setting.vllm_bytes + token * sum(length * (prompt + length / 2) for length in drawn)
    flops = sum(drawn) * forward_flops(shape, 2 * prompt + setting.lengths.response) / tensor
    work = max(read / (device.bandwidth * DECODE_SHARE), flops / (device.flops * FORWARD_SHARE))
    return work + max(ends) * DECODE_STEP


def score_teacher(setting: Setting, teacher: Sharded) -> Phase:
    """One forward over every prompt and response, and the way onto the GPU unless the teacher stays there."""
    scoring, grid = setting.config.scoring, teacher.grid
    tokens = scoring.tokens_per_microbatch // grid.context
    logits = teacher.scoring_logits_bytes(tokens, scoring.chunk_tokens, divided=False)
    items = (
        _process_item(setting, 1 if setting.dedicated else setting.processes),
        *_forward_items("teacher", teacher, tokens),
        Item("logits", logits, "bfloat16 over all tokens, one chunk again"),
    )
    seconds = setting.forward_seconds(teacher)
    how = f"{_peta(setting.flops(teacher))} on {grid.ranks} GPUs at {FORWARD_SHARE:.0%}"
    if setting.dedicated:
        return Phase("score teacher", "teacher GPUs", items, seconds, f"{how}; the student's GPUs wait")
    moved = teacher.weight_bytes  # a frozen model is not copied back
    seconds += moved / setting.device.host_link
    return Phase("score teacher", setting.where, items, seconds, f"{how}; {_gib(moved)} over the host link")


def score_student(setting: Setting) -> list[Phase]:
    """Student at two temperatures in one forward, and the reference through NeMo-RL's own scoring."""
    student, scoring = setting.student, setting.config.scoring
    tokens, chunk = scoring.tokens_per_microbatch // student.grid.context, scoring.chunk_tokens
    divided = setting.config.rollout.temperature != 1.0
    logits = student.scoring_logits_bytes(tokens, chunk, divided=divided)
    how = "bfloat16 over all tokens, one chunk again and divided by T_r"
    if setting.reference:
        logits = max(logits, student.reference_logits_bytes(tokens, chunk))
        how = "bfloat16 over all tokens, three float32 buffers of a chunk (reference)"
    items = (*_processes(setting), *_forward_items("student", student, tokens), Item("logits", logits, how))
    forward, work = setting.forward_seconds(student), _peta(setting.flops(student))
    weights, link = student.weight_bytes, setting.device.host_link
    how = f"{work} at {FORWARD_SHARE:.0%}"
    phases = [Phase("score student", setting.where, items, forward + weights / link, how)]
    if setting.reference:
        how = f"{work}; {_gib(2 * weights)} of weights swapped over the host link"
        phases.append(Phase("score reference", setting.where, items, forward + 2 * weights / link, how))
    return phases


def train(setting: Setting) -> Phase:
    """Forward, backward twice as dear, the layers once more with checkpointing; then gradients and weights travel."""
    device, student = setting.device, setting.student
    shape, grid, lengths = student.shape, student.grid, setting.lengths
    stages = [_train_items(setting, stage) for stage in range(grid.pipeline)]
    items = max(stages, key=lambda items: sum(item.size for item in items))
    forward = setting.flops(student)
    flops = 3 * forward
    if setting.config.student.activation_checkpointing:
        head = 2.0 * shape.vocabulary * shape.hidden
        flops += forward - head * setting.responses * lengths.whole
    compute = flops / (grid.ranks * device.flops * TRAIN_SHARE)
    minibatch = setting.config.train.minibatch_responses
    steps = setting.responses // minibatch
    sharing = grid.data * grid.context
    travelling = steps * (FP32 + BF16) * student.most_parameters * (sharing - 1) / sharing
    link = device.peer_link if setting.config.cluster.nodes == 1 else device.network
    seconds = compute + travelling / link + setting.optimizer_bytes / device.host_link
    how = f"{_peta(flops)} at {TRAIN_SHARE:.0%}, {steps} optimizer step{'s' if steps > 1 else ''}"
    if grid.pipeline > 1:
        # A 1F1B pipeline is longer than its work by (stages - 1) / micro-batches.
        tokens = minibatch / grid.data * lengths.whole
        bubble = (grid.pipeline - 1) / max(1.0, tokens / setting.config.train.tokens_per_microbatch)
        seconds, how = seconds + bubble * compute, f"{how}; pipeline bubble {bubble:.0%}"
    return Phase("train", setting.where, tuple(items), seconds, how)


def _train_items(setting: Setting, stage: int) -> list[Item]:
    """Weights, gradients, optimizer, activations and logits of a pipeline stage."""
    student, grid, config = setting.student, setting.student.grid, setting.config
    tokens, held = config.train.tokens_per_microbatch // grid.context, student.parameters(stage)
    layer, last = student.kept_bytes(tokens), stage == grid.pipeline - 1
    if config.student.activation_checkpointing:
        kept = student.checkpointed_bytes(stage, tokens)
        how = f"inputs of {len(student.layers(stage))} layers x {grid.pipeline - stage} micro-batches in flight"
        # While a layer is computed again, its activations and their gradients are there.
        working = Item("layer at work", 2 * layer, "one layer computed again, with its gradients")
    else:
        kept, how = (grid.pipeline - stage) * len(student.layers(stage)) * layer, "every layer's"
        working = Item("layer at work", layer, "gradients of one layer")
    logits = student.train_logits_bytes(tokens, config.scoring.chunk_tokens) if last else 0
    if logits > working.size:  # the logits are gone before the layers run backward, so the larger of the two counts
        working = Item("logits", logits, "bfloat16 logits and gradient, one chunk in float32")
    optimizer = student.optimizer_bytes(stage)
    return [
        *_processes(setting),
        Item("student weights", BF16 * held, f"{held:,} parameters of stage {stage}, 2 bytes"),
        Item("gradients", FP32 * held, "float32 buffer, 4 bytes a parameter, on every data-parallel rank"),
        Item("optimizer", optimizer, f"12 bytes a parameter over {grid.data * grid.context} ranks"),
        Item("activations", kept, how),
        *(_gathered(student, tokens) if last else []),
        working,
    ]


def _weights(role: str, model: Sharded) -> Item:
    return Item(f"{role} weights", model.weight_bytes, f"{model.most_parameters:,} parameters, 2 bytes")


def _forward_items(role: str, model: Sharded, tokens: int) -> list[Item]:
    """Weights, one layer's activations, and what sequence parallelism gathers."""
    layer = Item("activations", model.forward_bytes(tokens), f"one layer, {tokens} tokens, no gradient")
    return [_weights(role, model), layer, *_gathered(model, tokens)]


def _gathered(model: Sharded, tokens: int) -> list[Item]:
    size, how = model.gathered_bytes(tokens), f"{tokens} tokens x {model.shape.hidden}, sequence parallel"
    return [Item("gathered states", size, how)] if size else []


def _vllm_weights(setting: Setting) -> Item:
    return Item("vLLM weights", setting.vllm_bytes, f"2 bytes a parameter over {setting.config.rollout.tensor} ranks")


def _processes(setting: Setting) -> list[Item]:
    """The processes of a GPU, and what a teacher that is off it may still hold."""
    items = [_process_item(setting, setting.processes)]
    if setting.colocated_teacher is not None:
        limit = setting.config.teacher.offload_limit_mebi
        items.append(Item("teacher asleep", limit * GIB // 1024, f"at most, teacher.offload_limit_mebi = {limit}"))
    return items


def _process_item(setting: Setting, count: int) -> Item:
    return Item("processes", count * PROCESS_BYTES, f"{count} workers, CUDA context and NCCL; assumed")


def _host(setting: Setting) -> Iterator[Item]:
    """Host memory of a node while everything sleeps there but vLLM."""
    student = setting.student
    ranks = min(student.grid.ranks, setting.config.cluster.gpus_per_node)
    yield Item("student weights", ranks * student.weight_bytes, f"{ranks} ranks, 2 bytes a parameter")
    yield Item("optimizer", ranks * setting.optimizer_bytes, f"{ranks} ranks, 12 bytes a parameter, sharded")
    yield Item("vLLM weights", ranks * setting.vllm_bytes, "copy of its sleep level 1")
    if setting.reference:
        yield Item("reference weights", ranks * student.weight_bytes, "initial student, always in host memory")
    if (teacher := setting.colocated_teacher) is not None:
        yield Item("teacher weights", ranks * teacher.weight_bytes, f"{ranks} ranks, 2 bytes a parameter")
    width = INT64 + 8 * FP32
    batch = setting.responses * setting.config.longest * width
    yield Item("batch on the driver", batch, f"token ids and 8 float32 columns, {width} bytes a token")


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _peta(flops: float) -> str:
    return f"{flops / 1e15:,.1f} PFLOP"


# -- layout and facts ------------------------------------------------------------------------------------------------


def _title(setting: Setting) -> str:
    config, own = setting.config, setting.config.teacher.dedicated_gpus
    title = f"{config.method.name}: student {config.student.model_name}"
    if setting.teacher is None:
        return title
    where = f"on {own} GPU{'s' if own > 1 else ''} of its own" if own else "on the same GPUs"
    return f"{title}, teacher {config.teacher.model_name} {where}"


def _layout(setting: Setting) -> Iterator[RankLine]:
    """One line a GPU, in rank order: the student's first, then a dedicated teacher's."""
    per_node, tensor = setting.config.cluster.gpus_per_node, setting.config.rollout.tensor
    student, teacher, beside = setting.student, setting.teacher, setting.colocated_teacher
    for rank in range(student.grid.ranks):
        engine, part = divmod(rank, tensor)
        yield RankLine(
            *divmod(rank, per_node),
            f"{_shard(student, rank, setting.responses)}; optimizer 1/{student.grid.data * student.grid.context}",
            ABSENT if beside is None else _shard(beside, rank, setting.responses),
            f"engine {engine}/{setting.replicas}" + (f", tensor {part}/{tensor}" if tensor > 1 else ""),
        )
    if teacher is not None and setting.dedicated:
        for rank in range(teacher.grid.ranks):
            held = _shard(teacher, rank, setting.responses)
            yield RankLine(*divmod(student.grid.ranks + rank, per_node), ABSENT, held, ABSENT)


def _shard(model: Sharded, rank: int, responses: int) -> str:
    grid, place = model.grid, model.grid.place(rank)
    layers = model.layers(place.pipeline)
    parts = [f"layers {layers.start}-{layers.stop - 1}"]
    if grid.pipeline > 1 and place.pipeline == 0:
        parts.append("embedding")
    if grid.pipeline > 1 and place.pipeline == grid.pipeline - 1:
        parts.append("output")
    if grid.tensor > 1:
        parts.append(f"tensor {place.tensor}/{grid.tensor}")
    if grid.context > 1:
        parts.append(f"context {place.context}/{grid.context}")
    return ", ".join([*parts, f"data {place.data}/{grid.data}: {-(-responses // grid.data)} responses"])


def _facts(setting: Setting) -> Iterator[str]:
    config, grid, teacher = setting.config, setting.student.grid, setting.teacher
    size, each = config.train.minibatch_responses, setting.responses // setting.replicas
    rest, steps = setting.responses % setting.replicas, setting.responses // size
    yield (
        f"{config.rollout.prompts_per_step} prompts x {config.rollout.responses_per_prompt} responses = "
        f"{setting.responses} a step"
    )
    yield (
        f"{steps} optimizer step{'s' if steps > 1 else ''} of {size} responses, {size // grid.data} on each of "
        f"{grid.data} data-parallel ranks"
    )
    yield (
        f"{setting.replicas} vLLM engines, {each} responses each{f' ({rest} engines take one more)' if rest else ''}; "
        f"the KV cache of one holds {concurrent_responses(setting, config.longest)} responses of {config.longest} "
        "tokens"
    )
    ranks = {"student.parallel.tensor": grid.tensor, "rollout.tensor": config.rollout.tensor}
    if teacher is not None:
        share, rest = divmod(setting.responses, teacher.grid.data)
        filled = f", {teacher.grid.data - rest} masked rows fill up the last" if rest else ""
        yield f"teacher: {share} responses on each of {teacher.grid.data} data-parallel ranks{filled}"
        ranks["teacher.parallel.tensor"] = teacher.grid.tensor
    for key, count in ranks.items():
        if config.cluster.gpus_per_node % count:
            yield (
                f"warning: {key}={count} does not stay within a node of {config.cluster.gpus_per_node} GPUs; every "
                "layer sums over the network, and the times leave these sums out"
            )


def _assumptions(setting: Setting) -> tuple[str, ...]:
    config, device = setting.config, setting.device
    return (
        f"{setting.lengths.said(config.rollout.max_response_tokens)}; memory takes the longest, {config.longest}",
        f"{device.name}: {device.flops / 1e12:.0f} TFLOP/s bfloat16, {device.bandwidth / 1e12:.1f} TB/s, "
        f"{device.host_link / 1e9:.0f} GB/s to host memory, {device.peer_link / 1e9:.0f} GB/s between GPUs, "
        f"{device.network / 1e9:.0f} GB/s between nodes",
        f"reached: {DECODE_SHARE:.0%} of bandwidth while generating, with {DECODE_STEP * 1e3:g} ms a "
        f"decoding step besides, {FORWARD_SHARE:.0%} of FLOP/s while scoring, {TRAIN_SHARE:.0%} while "
        "training",
        f"besides tensors: {PROCESS_BYTES / GIB:.1f} GiB a worker process, "
        f"{VLLM_BYTES / GIB:.0f} GiB for vLLM's activations and graphs",
        "not counted: verification, the advantages (0.1 s for 1008 x 16,384 on one CPU thread), start-up, "
        "fragmentation",
    )


def _memory_faults(setting: Setting, phases: Sequence[Phase]) -> Iterator[str]:
    """Phases that need more than a device offers, and a KV cache too small for one sequence."""
    for phase in phases:
        if phase.size > setting.capacity:
            largest = max(phase.device, key=lambda item: item.size)
            yield (
                f"{phase.name} needs {phase.size / GIB:.1f} GiB on each device ({phase.where}), the "
                f"{setting.device.name} offers {setting.capacity / GIB:.0f}; the largest part is {largest.name} with "
                f"{largest.size / GIB:.1f} GiB"
            )
    longest = setting.config.longest
    if concurrent_responses(setting, longest) == 0:
        yield (
            f"rollout: with rollout.gpu_memory={setting.config.rollout.gpu_memory} vLLM's KV cache does not hold one "
            f"sequence of {longest} tokens"
        )


# -- the same run laid out otherwise ---------------------------------------------------------------------------------


def variant(config: NemoConfig, changes: Mapping[str, Any]) -> NemoConfig:
    """The configuration with some dotted keys changed, validated again.

    Raises:
        ConfigError: the changed configuration is refused.
    """
    tree = config.model_dump()
    for name, value in changes.items():
        *path, last = name.split(".")
        section = tree
        for part in path:
            section = section[part]
        section[last] = value
    try:
        return type(config).model_validate(tree)
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


def other_placements(config: NemoConfig, device: Device, lengths: Lengths) -> dict[str, Plan | str]:
    """The run with its teacher on the student's GPUs and on GPUs of its own, by place; why, where one is refused."""
    gpus, cluster = config.gpus, config.cluster
    own = config.teacher.dedicated_gpus or (1 if cluster.nodes == 1 else cluster.gpus_per_node)
    if own >= gpus or not config.method.entry.needs_teacher:
        return {}
    found: dict[str, Plan | str] = {}
    for name, dedicated in ((f"colocated, {gpus} GPUs", 0), (f"{gpus - own} + {own} GPUs", own)):
        try:
            found[name] = nemo_plan(variant(config, {"teacher.dedicated_gpus": dedicated}), device, lengths)
        except ConfigError as error:
            found[name] = str(error)
    return found


def what_fits(config: NemoConfig, device: Device, lengths: Lengths) -> list[str]:
    """Single changes after which everything fits, as the user would type them, the gentlest first.

    Each is really planned. Empty when none of those tried is enough.
    """
    found: list[str] = []
    for changes in _single_changes(config):
        try:
            plan = nemo_plan(variant(config, changes), device, lengths)
        except ConfigError:
            continue
        if not plan.misfits:
            found.append(" ".join(f"{key}={str(value).lower()}" for key, value in changes.items()))
        if len(found) == SUGGESTIONS:
            break
    return found


def _single_changes(config: NemoConfig) -> Iterator[dict[str, Any]]:
    """One key each; tensor ranks bring sequence parallelism."""
    least = config.packed(config.longest)
    yield {"student.activation_checkpointing": True}
    yield {"train.tokens_per_microbatch": least}
    yield {"scoring.tokens_per_microbatch": least}
    yield {"scoring.chunk_tokens": 512}
    for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        yield {"rollout.gpu_memory": share}
    for size in (2, 4, 8):
        for role in ("student", "teacher"):
            yield {f"{role}.parallel.tensor": size, f"{role}.parallel.sequence": True}
        yield {"rollout.tensor": size}
    for size in (2, 4, 8):
        yield {"student.parallel.pipeline": size}
        yield {"student.parallel.context": size}
        yield {"cluster.nodes": size * config.cluster.nodes}
