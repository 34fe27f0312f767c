"""The plan of a run of the local back end: one process, one device, with `offload` to host memory.

Shape legend: H = hidden size, F = feed-forward size; of a mixture of experts, E = experts of a layer, k = experts of a
token, W = feed-forward size of an expert.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from nemo_uecr.config.schema import (
    Config,
    OneTeacher,
    SelfTeacherConfig,
    TeacherConfig,
    UrlTeacherConfig,
    longest_generated,
    url_teachers,
)
from nemo_uecr.local import CHUNK_BYTES
from nemo_uecr.plan import contents, shapes
from nemo_uecr.plan.contents import GIB, Device, Item, Lengths, Phase, Plan
from nemo_uecr.plan.faults import mismatches_of
from nemo_uecr.plan.nemo import DECODE_STEP, VLLM_BYTES, cache_faults, engine_seconds, response_lengths
from nemo_uecr.plan.shapes import BF16, FP32, ModelShape

Sizes = Callable[[str, str], ModelShape]  # (model name, role) -> its sizes

# Overhead per layer and decoding step of transformers, whatever the model's size. GPU: with a CUDA graph; 28 layers
# took 9.3 ms at 16 rows and 12.3 ms at 32 on an H200, about 1.3 ms of it reading weights (docs/benchmarks.md).
LAYER_SECONDS = {"CPU": 4e-4, "GPU": 3.5e-4}
PROCESS_BYTES = GIB  # besides torch's tensors: 0.81 to 0.87 GiB on an H200 (docs/benchmarks.md)
SLOW = "; on a CPU bfloat16 and micro-batches of one each take two to four times that"
VLLM_ASLEEP = 8 * GIB // 10  # of a sleeping vLLM engine: 0.76 GiB on an H100, its process included (NeMo-RL 223)
SMALL_MOMENTS = 2.03  # bytes per parameter: two moments of 8 bits, and a scale for each 256


def inner_width(shape: ModelShape) -> int:
    """Values per token of each of the four tensors in a feed-forward layer: F.

    Of a mixture k (W + H / 2): the copies that go to experts and their results stand beside four tensors of k experts.
    """
    if not shape.experts:
        return shape.feed_forward
    return shape.experts_per_token * (shape.expert_width + shape.hidden // 2)


def kept_bytes(shape: ModelShape, tokens: int, *, bfloat16: bool) -> int:
    """What one unfused transformers layer with query and key norms keeps for the backward pass.

    float32: 6 H + 2 + 4 (query + key-value width) + 2 heads + key-value heads + 4 F values per token.
    bfloat16 computation with float32 weights: residual and norm inputs stay float32, every matrix product keeps a
    bfloat16 copy of its input, and the weight matrices are copied too.
    """
    heads, groups, width = shape.heads, shape.kv_heads, shape.query + shape.key_value
    if not bfloat16:
        return FP32 * tokens * (6 * shape.hidden + 2 + 4 * width + 2 * heads + groups + 4 * inner_width(shape))
    values = 26 * shape.hidden + 8 + 10 * width + 8 * heads + 4 * groups + 8 * inner_width(shape)
    experts = shape.experts * shapes.expert_parameters(shape)
    matrices = shapes.layer_parameters(shape) + experts - 2 * shape.hidden - 2 * shape.head_dim
    return tokens * values + BF16 * matrices


def adapted_bytes(shape: ModelShape, tokens: int, rank: int, *, bfloat16: bool) -> int:
    """The same if only an adapter is trained: frozen norms keep less, and no weight is copied.

    The adapter is float32: on a bfloat16 base it keeps every linear layer's input in float32.
    """
    width, matrices = shape.query + shape.key_value, _matrices(shape)
    always = 2 * shape.hidden + 2 + width + 2 * shape.heads + shape.kv_heads + rank * len(matrices)
    if not bfloat16:
        return FP32 * tokens * (always + 2 * shape.hidden + 2 * width + 4 * inner_width(shape))
    inputs = sum(inputs for _, inputs in matrices)
    return tokens * (FP32 * (always + inputs) + BF16 * (2 * width + 3 * inner_width(shape)))


def logits_bytes(shape: ModelShape, tokens: int, *, bfloat16: bool, gpu: bool) -> int:
    """Logits in training, per chunk: logits and gradient, and float32 rows beside bfloat16 ones."""
    logits = min(CHUNK_BYTES["cuda" if gpu else "cpu"], FP32 * tokens * shape.vocabulary)
    return logits + logits // 2 if bfloat16 else 2 * logits


@dataclass(frozen=True)
class _Run:
    """A run on its device, with what several phases need; a width is the bytes of one value."""

    config: Config
    device: Device
    lengths: Lengths
    student: ModelShape
    teachers: Mapping[str, OneTeacher]  # by key; not those on a server, and a model with two names only once
    shapes: Mapping[str, ModelShape]  # sizes of the teachers that have weights of their own

    @classmethod
    def of(cls, config: Config, device: Device, lengths: Lengths, sizes: Sizes) -> _Run:
        """Look up the sizes of the configured models."""
        student = sizes(config.student.model_name, "student")
        teachers: dict[str, OneTeacher] = {}
        for key, teacher in config.active_teachers.items():
            if not isinstance(teacher, UrlTeacherConfig) and teacher not in teachers.values():
                teachers[key] = teacher
        models = {key: one for key, one in teachers.items() if isinstance(one, TeacherConfig)}
        shapes_of = {key: sizes(str(teacher.model_name), key) for key, teacher in models.items()}
        return cls(config, device, lengths, student, teachers, shapes_of)

    # The batch

    @property
    def responses(self) -> int:
        """Responses of a step."""
        return self.config.rollout.prompts_per_step * self.config.rollout.responses_per_prompt

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest response."""
        return self.config.data.max_prompt_tokens + self.config.rollout.max_response_tokens

    @property
    def microbatch_tokens(self) -> int:
        """Tokens of a micro-batch of the longest responses."""
        return min(self.config.train.microbatch_responses, self.responses) * self.longest

    @property
    def rollout_batch(self) -> int:
        """Responses of full length whose keys and values fit into the cache of the run's engine at once."""
        if self.vllm:
            return self.vllm_cache // (self.cached_token * self.longest)
        return min(self.config.rollout.microbatch_responses, self.responses)

    def forward(self, shape: ModelShape) -> float:
        """FLOPs of a forward pass over all prompts and responses of a step."""
        return self.responses * self.lengths.whole * shapes.forward_flops(shape, self.lengths.whole)

    # The device

    @property
    def gpu(self) -> bool:
        return self.device.name != "CPU"

    @property
    def vllm(self) -> bool:
        return self.gpu and self.config.rollout.engine == "vllm"

    @property
    def threads(self) -> int:
        """Threads that compute, where the device's rates are those of one."""
        return self.config.threads or 1 if self.device.memory is None else 1

    @property
    def launch_seconds(self) -> float:
        """Overhead of a layer in a decoding step."""
        return LAYER_SECONDS["GPU" if self.gpu else "CPU"]

    # The student's weights

    @property
    def lora_rank(self) -> int:
        """0 if all weights are trained."""
        return self.config.student.lora_rank

    @cached_property
    def parameters(self) -> int:
        return shapes.parameters(self.student)

    @property
    def trained(self) -> int:
        """Parameters that the optimizer updates."""
        student = self.config.student
        if self.lora_rank:
            more = {"experts": student.lora_experts, "routers": not student.freeze_moe_router}
            return lora_parameters(self.student, self.lora_rank, **more)
        frozen = self.student.layers * self.student.hidden * self.student.experts if student.freeze_moe_router else 0
        return self.parameters - frozen

    @property
    def bfloat16(self) -> bool:
        """Whether the student computes in bfloat16."""
        return self.config.student.dtype == "bfloat16"

    @property
    def rounds_at_random(self) -> bool:
        """Whether trained weights are bfloat16, by stochastic rounding."""
        return self.config.train.optimizer == "adamw8bit_sr"

    @property
    def weight_width(self) -> int:
        """Of the student's weights: float32 if they are trained, except under stochastic rounding."""
        return BF16 if self.bfloat16 and (self.lora_rank or self.rounds_at_random) else FP32

    @property
    def autocast_width(self) -> int:
        """Of the copies that autocast makes of float32 weights; 0 if it makes none."""
        return BF16 if self.bfloat16 and self.weight_width == FP32 else 0

    @property
    def engine_width(self) -> int:
        """Of the rollout's keys and values, and of vLLM's weights."""
        return BF16 if self.bfloat16 else FP32

    @property
    def cached_token(self) -> int:
        """Bytes of the keys and values of a token."""
        return shapes.kv_token_bytes(self.student, 1, self.engine_width)

    @property
    def vllm_weights(self) -> int:
        """Bytes of vLLM's own copy of the student, an adapter included."""
        return self.engine_width * (self.parameters + (self.trained if self.lora_rank else 0))

    @property
    def vllm_cache(self) -> int:
        """Bytes that vLLM has for keys and values."""
        share = int(self.config.rollout.gpu_memory * (self.device.memory or 0))
        return max(0, share - self.vllm_weights - VLLM_BYTES)

    # What is on the device, and when

    @property
    def scores_reference(self) -> bool:
        """Whether the initial student scores the responses, for the loss or the method."""
        return self.config.loss.reference_kl > 0 or "initial_logp" in self.config.method.reads

    @property
    def keeps_initial(self) -> bool:
        """Whether the initial student is needed, as the reference or as a teacher."""
        selves = [one for one in self.teachers.values() if isinstance(one, SelfTeacherConfig)]
        return self.scores_reference or any(one.self == "initial" for one in selves)

    @property
    def initial(self) -> str:
        """The member with the initial student's weights: a student with its adapter off is its own reference."""
        return "student" if self.lora_rank else "reference"

    @property
    def rollout_members(self) -> tuple[str, ...]:
        """Members that a rollout needs besides vLLM's weights: with an adapter, vLLM has a base of its own."""
        return () if self.vllm and self.lora_rank else ("student",)

    @cached_property
    def weights(self) -> dict[str, Item]:
        """All weights and moments of the run, under the names of `local.memory.Placement`."""
        kind, size = "float32" if self.weight_width == FP32 else "bfloat16", self.weight_width * self.parameters
        how = f"{self.parameters:,} parameters, {kind}"
        small = self.config.train.optimizer != "adamw"
        moments = int((SMALL_MOMENTS if small else 2 * FP32) * self.trained)
        members = {
            "student": Item("student weights", size, how),
            "optimizer": Item("optimizer", moments, f"AdamW's two moments, {'8 bits' if small else 'float32'}"),
        }
        if self.lora_rank:
            how = f"{how}; adapter of {self.trained:,}, float32"
            members["student"] = Item("student weights", size + FP32 * self.trained, how)
        elif self.keeps_initial:
            members["reference"] = Item("reference weights", size, f"the initial student, {kind}")
        for key, teacher in self.teachers.items():
            if isinstance(teacher, TeacherConfig):
                members[key] = _teacher_weights(key, teacher, self.shapes[key])
        return members

    @property
    def movable(self) -> list[str]:
        """Members that are on the device only while a phase needs them."""
        stays = {"none": self.weights.keys(), "teacher": {"student", "optimizer"}, "all": set[str]()}
        return [name for name in self.weights if name not in stays[self.config.offload]]

    @property
    def asleep(self) -> list[Item]:
        """What vLLM holds outside the rollout."""
        return [Item("vLLM asleep", VLLM_ASLEEP, "assumed")] if self.vllm else []


class _Scoring(NamedTuple):
    """A phase in which one model scores responses."""

    name: str  # the phase's
    shape: ModelShape
    member: str  # the weights that it needs, as `_Run.weights` names them
    parts: int = 1  # models that share the responses


def local_plan(config: Config, device: Device, lengths: Lengths, *, sizes: Sizes) -> Plan:
    """Plan a validated configuration on a device; ``lengths`` determine the times."""
    run = _Run.of(config, device, lengths, sizes)
    scorings = list(_scorings(run))
    moved = _moved(run, scorings)
    computed = [_rollout(run), *(_scored(run, scoring) for scoring in scorings), _update(run)]
    phases = [_with_transfer(phase, moved[phase.name], device) for phase in computed]
    mismatches = mismatches_of(config, run.student, run.shapes)
    teacher = "whole" if run.teachers else "-"
    return Plan(
        title=_title(run),
        hardware=_hardware(run),
        capacity=device.offered or None,
        layout=(contents.RankLine(0, 0, f"whole, {run.responses} responses", teacher, config.rollout.engine),),
        phases=tuple(phases),
        host=(
            Item("batch", run.responses * run.longest * 40, "token ids and 8 float32 columns, 40 bytes per token"),
            *_host(run),
        ),
        checkpoint=_checkpoint(run),
        facts=_facts(run, step_seconds=sum(phase.seconds for phase in phases), moved=sum(moved.values())),
        assumptions=_assumptions(run),
        faults=(*mismatches, *_memory_faults(run, phases)),
        mismatches=mismatches,
    )


def _scorings(run: _Run) -> Iterator[_Scoring]:
    """The phases of scoring in their order: with a lag the student at the draw; student, teachers, reference."""
    if run.config.rollout.lag:
        yield _Scoring("score at the draw", run.student, "student")
    yield _Scoring("score student", run.student, "student")
    teachers = len(set(run.config.active_teachers.values()))  # those on servers score their share, too
    for key, teacher in run.teachers.items():
        if isinstance(teacher, SelfTeacherConfig):
            member = run.initial if teacher.self == "initial" else "student"
            yield _Scoring(f"score {key}", run.student, member, teachers)
        else:
            yield _Scoring(f"score {key}", run.shapes[key], key, teachers)
    if run.scores_reference:
        yield _Scoring("score reference", run.student, run.initial)


def _with_transfer(phase: Phase, moved: int, device: Device) -> Phase:
    """The phase with the time that ``moved`` bytes take over the host link."""
    if not moved:
        return phase
    how = f"{phase.how}; {moved / GIB:.1f} GiB over the host link"
    return replace(phase, seconds=phase.seconds + moved / device.host_link, how=how)


def _title(run: _Run) -> str:
    config = run.config
    models = [f"{config.method.name}: student {config.student.model_name}"]
    for key, teacher in run.teachers.items():
        name = f"the {teacher.self} student" if isinstance(teacher, SelfTeacherConfig) else teacher.model_name
        models.append(f"{key} {name}")
    models += [f"{key} {served.model_name} at {served.url}" for key, served in url_teachers(config).items()]
    return f"{', '.join(models)}, local back end"


def _hardware(run: _Run) -> str:
    device, threads = run.device, run.config.threads
    counted = f", {threads} thread(s)" if threads else ", threads: torch's choice (times: of one)"
    memory = f", {device.offered / GIB:.1f} GiB" if device.offered else ""
    return f"one {device.name}{'' if run.gpu else counted}{memory}"


def _facts(run: _Run, *, step_seconds: float, moved: int) -> tuple[str, ...]:
    """The batch in numbers, the bytes ``moved`` over the host link in a step, and the time of the whole run."""
    config, train, rollout = run.config, run.config.train, run.config.rollout
    steps = run.responses // train.minibatch_responses
    slow = not run.gpu and (config.student.dtype != "float32" or train.microbatch_responses == 1)
    return (
        f"{rollout.prompts_per_step} prompts x {rollout.responses_per_prompt} responses = {run.responses} per step",
        f"{steps} optimizer step{'s' if steps > 1 else ''} of {train.minibatch_responses} responses in "
        f"micro-batches of {train.microbatch_responses}",
        f"room for the keys and values of {run.rollout_batch} responses of {run.longest} tokens at once",
        *_of_the_lag(run),
        f"{moved / GIB:.1f} GiB to and from the device per step",
        _whole_run(config, step_seconds) + (SLOW if slow else ""),
    )


def _of_the_lag(run: _Run) -> Iterator[str]:
    if lag := run.config.rollout.lag:
        yield f"drawn {lag} steps ahead: the first step draws the responses of {lag + 1}"


def _assumptions(run: _Run) -> tuple[str, ...]:
    device, longest_response = run.device, run.config.rollout.max_response_tokens
    overhead = f"{run.launch_seconds * 1e3:g} ms of launches per layer and decoding step"
    if run.vllm:
        overhead = (
            f"{DECODE_STEP * 1e3:g} ms per decoding step of vLLM besides; {PROCESS_BYTES / GIB:.1f} GiB of CUDA's own, "
            f"{VLLM_BYTES / GIB:.0f} GiB of vLLM's besides weights and cache, {VLLM_ASLEEP / GIB:.1f} asleep"
        )
    return (
        f"{run.lengths.described(longest_response)}; memory takes the longest, {run.longest}",
        f"{device.name}: {device.flops * run.threads / 1e9:,.0f} GFLOP/s, {device.bandwidth / 1e9:,.0f} GB/s; "
        f"{contents.REACHED}",
        overhead,
        "not counted: verification, evaluation, checkpoints, a server's scores, Python and torch (about 1 GiB)",
    )


def _whole_run(config: Config, seconds: float) -> str:
    """Time of all steps, and of those that a kill may cost; a step takes ``seconds``."""
    steps = config.train.steps
    lost = min(config.checkpoint.every or steps, steps)
    whole, again = (_time(count * seconds) for count in (steps, lost))
    return f"{steps} steps: {whole}; a kill costs at most {lost} of them, {again} (checkpoint.every)"


def _time(seconds: float) -> str:
    size, unit = (3600, "h") if seconds >= 3600 else (60, "min") if seconds >= 60 else (1, "s")
    return f"{seconds / size:,.1f} {unit}"


def lora_parameters(shape: ModelShape, rank: int, *, experts: bool = False, routers: bool = False) -> int:
    """Parameters of an adapter on every linear layer: r (inputs + outputs) per layer.

    Of a mixture, with ``experts``, the same for the two matrices of each of them; with ``routers`` for those.
    """
    widths = sum(outputs + inputs for outputs, inputs in _matrices(shape))
    if experts:
        widths += shape.experts * (2 * shape.hidden + 3 * shape.expert_width)
    if routers and shape.experts:
        widths += shape.hidden + shape.experts
    return rank * shape.layers * widths


def _matrices(shape: ModelShape) -> list[tuple[int, int]]:
    """(outputs, inputs) of every linear layer in a transformer layer; a mixture's experts are none."""
    hidden, feed_forward = shape.hidden, (shape.feed_forward, shape.hidden)
    attention = [(shape.query, hidden), *2 * [(shape.key_value, hidden)], (hidden, shape.query)]
    return attention if shape.experts else [*attention, *2 * [feed_forward], feed_forward[::-1]]


def _fused(shape: ModelShape) -> list[tuple[int, int]]:
    """(rows, columns) of the two tensors in which transformers keeps all experts of a layer; none of a dense model."""
    one = [(2 * shape.expert_width, shape.hidden), (shape.hidden, shape.expert_width)]
    return [(shape.experts * rows, columns) for rows, columns in one] if shape.experts else []


def pinned_bytes(shape: ModelShape, width: float) -> int:
    """Pinned host memory of the matrices, `width` bytes per value: torch rounds each up to a power of two."""
    tables = (1 if shape.tied else 2) * [(shape.vocabulary, shape.hidden)]
    routers = [(shape.experts, shape.hidden)] if shape.experts else []
    layer = [*_matrices(shape), *_fused(shape), *routers]
    sizes = (int(width * outputs * inputs) for outputs, inputs in shape.layers * layer + tables)
    return sum(1 << (size - 1).bit_length() for size in sizes)


def quantized_bytes(shape: ModelShape, quantize: str, width: int) -> int:
    """A teacher with quantized linear layers: int8 adds 5 bytes per row, nf4 adds 4 bytes per 64 weights."""
    matrices = _rounded(shape, quantize)
    weights = sum(outputs * inputs for outputs, inputs in matrices)
    rounded = weights // 2 + weights // 16
    if quantize == "int8":
        rounded = weights + 5 * sum(outputs for outputs, _ in matrices)
    return rounded + width * (shapes.parameters(shape) - weights)


def _rounded(shape: ModelShape, quantize: str) -> list[tuple[int, int]]:
    """(rows, columns) of what is rounded: linear layers, and under int8 a mixture's experts."""
    return shape.layers * [*_matrices(shape), *(_fused(shape) if quantize == "int8" else [])]


def _teacher_weights(key: str, teacher: TeacherConfig, shape: ModelShape) -> Item:
    count, width = shapes.parameters(shape), BF16 if teacher.dtype == "bfloat16" else FP32
    size, how = width * count, f"{count:,} parameters, {teacher.dtype}"
    if teacher.quantize != "none":
        share = sum(rows * columns for rows, columns in _rounded(shape, teacher.quantize)) / count
        size, how = quantized_bytes(shape, teacher.quantize, width), f"{how}; {teacher.quantize} of {share:.0%}"
    return Item(f"{key} weights", size, how)


def _resident(run: _Run, *needed: str) -> list[Item]:
    """What is on the device in a phase: what the phase needs, and what is never offloaded."""
    items = [item for name, item in run.weights.items() if name in needed or name not in run.movable]
    if "optimizer" in needed:
        width = BF16 if run.rounds_at_random else FP32
        items.append(Item("gradients", width * run.trained, "bfloat16" if run.rounds_at_random else "float32"))
    if run.gpu:
        items.append(Item("process", PROCESS_BYTES, "CUDA context and libraries"))
    return items


def _moved(run: _Run, scorings: Sequence[_Scoring]) -> dict[str, int]:
    """Bytes over the host link per phase, from the end of one update to the end of the next.

    Frozen weights leave without a copy; vLLM with an adapter fetches its weights from host memory and returns them.
    """
    movable, trained = set(run.movable), {"student", "optimizer"}
    needs = {"rollout": set(run.rollout_members)} | {each.name: {each.member} for each in scorings}
    present, moved = trained & movable, {}
    for phase, needed in (needs | {"update": trained}).items():
        leaving, coming = present - needed, (needed & movable) - present
        moved[phase] = sum(run.weights[name].size for name in coming | leaving & trained)
        present = present - leaving | coming
    if run.vllm and run.lora_rank:
        moved["rollout"] += 2 * run.vllm_weights
    return moved


def _host(run: _Run) -> Iterator[Item]:
    """What is offloaded to host memory; for a GPU it is pinned, and torch rounds each tensor up to a power of two."""
    for name in run.movable:
        size = run.weights[name].size
        if run.gpu and name == "optimizer" and run.lora_rank:
            size *= 2  # at most: small tensors
        elif run.gpu:
            shape = run.shapes.get(name, run.student)
            copies = 2 if name == "optimizer" else 1
            # The scales of few bits and an adapter are small beside the rest.
            width = round(2 * size / copies / shapes.parameters(shape)) / 2
            size = max(size, copies * pinned_bytes(shape, width))
        yield Item(run.weights[name].name, size, "while a phase does not need it" + (", pinned" if run.gpu else ""))
    if run.vllm and run.lora_rank:
        yield Item("vLLM weights", pinned_bytes(run.student, run.engine_width), "while it sleeps, pinned")


def _checkpoint(run: _Run) -> Item:
    moments = 2 * FP32 if run.config.train.optimizer == "adamw" else SMALL_MOMENTS
    width = (FP32 if run.lora_rank else run.weight_width) + moments
    how = f"{run.trained:,} parameters with AdamW's moments, {width:g} bytes"
    return Item("checkpoint", int(width * run.trained), how)


def _rollout(run: _Run) -> Phase:
    """Sampling: by transformers in batches as long as their longest response, or by vLLM as many at once as fit."""
    ends = list(response_lengths(run.lengths, run.config.rollout.max_response_tokens, run.responses))
    random.Random(0).shuffle(ends)
    return _vllm(run, ends) if run.vllm else _batches(run, ends)


def _vllm(run: _Run, ends: list[float]) -> Phase:
    lengths, share = run.lengths, f"rest of rollout.gpu_memory = {run.config.rollout.gpu_memory:g} of the device"
    items = (
        *_resident(run, *run.rollout_members),
        Item("vLLM weights", run.vllm_weights, f"{run.engine_width} bytes per parameter"),
        Item("vLLM activations and graphs", VLLM_BYTES, "assumed"),
        Item("KV cache", max(run.longest * run.cached_token, run.vllm_cache), f"{share}; at least one response"),
    )
    at_once = max(1, min(run.responses, run.vllm_cache // (run.cached_token * lengths.whole)))
    flops = shapes.forward_flops(run.student, 2 * lengths.prompt + lengths.response)
    seconds = engine_seconds(
        run.device, ends, at_once, lengths.prompt, weights=run.vllm_weights, cached=run.cached_token, flops=flops,
        experts=(run.engine_width * shapes.routed_parameters(run.student), run.student),
    )  # fmt: skip
    # A group's prompt is computed once: vLLM's prefix cache serves the other responses.
    prefill = run.config.rollout.prompts_per_step * lengths.prompt * shapes.forward_flops(run.student, lengths.prompt)
    seconds += run.device.forward_s(prefill, 1)
    return Phase("rollout", "the device", items, seconds, f"{run.responses} responses, {at_once} at once")


def _batches(run: _Run, ends: list[float]) -> Phase:
    shape, lengths, at_once, token = run.student, run.lengths, run.rollout_batch, run.cached_token
    cache = f"{at_once} responses of {run.longest} tokens, {token} bytes per token"
    logits, how = 4 * FP32 * at_once * shape.vocabulary, "of one token per response, four times in float32"
    items = _resident(run, "student")
    items += [Item("KV cache", at_once * run.longest * token, cache), Item("logits being drawn from", logits, how)]
    if run.autocast_width:
        copies = run.autocast_width * run.parameters
        items.append(Item("bfloat16 weights", copies, "kept by autocast from token to token"))
    waves = [max(ends[first : first + at_once]) for first in range(0, run.responses, at_once)]
    unread = shapes.routed_parameters(shape) * (1.0 - shapes.chosen_share(shape, at_once))
    weights = (run.autocast_width or run.weight_width) * (run.parameters - unread)
    cached = at_once * token * sum(length * (lengths.prompt + length / 2) for length in waves)
    flops = at_once * sum(waves) * shapes.forward_flops(shape, lengths.whole)
    work = run.device.decode_s(sum(waves) * weights, cached, flops, run.threads)
    waited = sum(waves) * shape.layers * run.launch_seconds
    mean = sum(waves) / len(waves)
    how = f"{len(waves)} x {mean:.0f} decoding steps: {work:.1f} s of work, {waited:.1f} s of launches"
    return Phase("rollout", "the device", tuple(items), work + waited, how)


def _scored(run: _Run, scoring: _Scoring) -> Phase:
    """Scoring by one model; several teachers are assumed to share the responses equally, whatever the routing."""
    shape, member, parts = scoring.shape, scoring.member, scoring.parts
    tokens, flops = run.microbatch_tokens, run.forward(shape) / parts
    widest = FP32 * tokens * (3 * shape.hidden + max(2 * shape.query + 2 * shape.key_value, 3 * inner_width(shape)))
    logits = 2 * min(CHUNK_BYTES["cuda" if run.gpu else "cpu"], FP32 * tokens * shape.vocabulary)
    logits += 0 if member in run.shapes else run.autocast_width * shape.vocabulary * shape.hidden
    items = (
        *_resident(run, member),
        Item("activations", widest, f"one layer, {tokens} tokens, no gradient"),
        Item("logits", logits, "one chunk and its working copy, float32"),
        *run.asleep,
    )
    how = _tera(flops) + (f", 1/{parts} of the responses assumed" if parts > 1 else "")
    seconds = run.device.forward_s(flops, run.threads, contents.forward_share(mixture=bool(shape.experts)))
    return Phase(scoring.name, "the device", items, seconds, how)


def _update(run: _Run) -> Phase:
    again, tokens = run.config.train.activation_checkpointing, run.microbatch_tokens
    shape, low, flops = run.student, run.bfloat16, (4 if again else 3) * run.forward(run.student)
    layer = kept_bytes(shape, tokens, bfloat16=low)
    gradients = 0  # `kept_bytes` with its copies has room for them
    if run.lora_rank:
        layer = adapted_bytes(shape, tokens, run.lora_rank, bfloat16=low)
        gradients = 2 * FP32 * tokens * inner_width(shape)
    kept, how_kept = shape.layers * layer, f"{shape.layers} layers, {tokens} tokens, all kept"
    # These follow one another, so the largest counts: the logits, a layer, and the sum of the output layer's gradients.
    work = [(logits_bytes(shape, tokens, bfloat16=low, gpu=run.gpu), "logits", "one chunk and its gradient")]
    if again:
        kept = (shape.layers + 5) * tokens * shape.hidden * run.weight_width
        how_kept = f"{shape.layers} layers' inputs, the features and their gradients, {tokens} tokens"
        work.append((layer + gradients, "layer at work", "one recomputed layer"))
    if not run.lora_rank:
        table = 3 * run.weight_width * shape.vocabulary * shape.hidden
        work.append((table, "output layer at work", "its gradient, the chunk's, and their sum"))
    size, name, how = max(work)
    items = (
        *_resident(run, "student", "optimizer"),
        Item("activations", kept, how_kept),
        Item(name, size, how),
        *run.asleep,
    )
    seconds = run.device.train_s(flops, run.threads, contents.train_share(mixture=bool(shape.experts)))
    return Phase("update", "the device", items, seconds, _tera(flops))


def _tera(flops: float) -> str:
    return f"{flops / 1e12:,.2f} TFLOP"


def _memory_faults(run: _Run, phases: list[Phase]) -> Iterator[str]:
    """The largest phase if the device is too small for it, and a KV cache too small for one sequence."""
    device, fullest = run.device, max(phases, key=lambda phase: phase.size)
    if device.memory is not None and fullest.size > device.offered:
        lever = "train.microbatch_responses"
        if fullest.name == "rollout":
            lever = "rollout.gpu_memory" if run.vllm else "rollout.microbatch_responses"
        yield (
            f"{fullest.name} needs {fullest.size / GIB:.1f} GiB, the {device.name} offers {device.offered / GIB:.1f}; "
            f"lower {lever} or take smaller models{'; plan --fit GB finds keys' * run.gpu}"
        )
    if run.vllm:
        longest, share = longest_generated(run.config), run.config.rollout.gpu_memory
        yield from cache_faults("rollout.gpu_memory", share, longest, run.vllm_cache // run.cached_token)
