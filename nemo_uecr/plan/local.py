"""The plan of a run of the local back end: one process, one device, with `offload` to host memory.

Shape legend: H = hidden size, F = feed-forward size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from nemo_uecr.config.schema import Config, OneTeacher, SelfTeacherConfig, TeacherConfig, UrlTeacherConfig, url_teachers
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


def kept_bytes(shape: ModelShape, tokens: int, *, bfloat16: bool) -> int:
    """What one unfused transformers layer with query and key norms keeps for the backward pass.

    float32: 6 H + 2 + 4 (query + key-value width) + 2 heads + key-value heads + 4 F values per token.
    bfloat16 computation with float32 weights: residual and norm inputs stay float32, every matrix product keeps a
    bfloat16 copy of its input, and the weight matrices are copied too.
    """
    heads, groups, width = shape.heads, shape.kv_heads, shape.query + shape.key_value
    if not bfloat16:
        return FP32 * tokens * (6 * shape.hidden + 2 + 4 * width + 2 * heads + groups + 4 * shape.feed_forward)
    values = 26 * shape.hidden + 8 + 10 * width + 8 * heads + 4 * groups + 8 * shape.feed_forward
    matrices = shapes.layer_parameters(shape) - 2 * shape.hidden - 2 * shape.head_dim
    return tokens * values + BF16 * matrices


def adapted_bytes(shape: ModelShape, tokens: int, rank: int, *, bfloat16: bool) -> int:
    """The same if only an adapter is trained: frozen norms keep less, and no weight is copied.

    The adapter is float32: on a bfloat16 base it keeps every linear layer's input in float32.
    """
    width, matrices = shape.query + shape.key_value, _matrices(shape)
    always = 2 * shape.hidden + 2 + width + 2 * shape.heads + shape.kv_heads + rank * len(matrices)
    if not bfloat16:
        return FP32 * tokens * (always + 2 * shape.hidden + 2 * width + 4 * shape.feed_forward)
    inputs = sum(inputs for _, inputs in matrices)
    return tokens * (FP32 * (always + inputs) + BF16 * (2 * width + 3 * shape.feed_forward))


def logits_bytes(shape: ModelShape, tokens: int, *, bfloat16: bool, gpu: bool) -> int:
    """Logits in training, per chunk: logits and gradient, and float32 rows beside bfloat16 ones."""
    logits = min(CHUNK_BYTES["cuda" if gpu else "cpu"], FP32 * tokens * shape.vocabulary)
    return logits + logits // 2 if bfloat16 else 2 * logits


class _Run:
    def __init__(self, config: Config, device: Device, lengths: Lengths, sizes: Sizes) -> None:
        self.config, self.device, self.lengths = config, device, lengths
        self.student = sizes(config.student.model_name, "student")
        self.teachers: dict[str, OneTeacher] = {}
        for key, teacher in config.active_teachers.items():
            if not (isinstance(teacher, UrlTeacherConfig) or teacher in self.teachers.values()):
                self.teachers[key] = teacher  # two names of one model share it; a server computes elsewhere
        models = {key: one for key, one in self.teachers.items() if isinstance(one, TeacherConfig)}
        self.shapes = {key: sizes(str(teacher.model_name), key) for key, teacher in models.items()}
        self.scores_reference = config.loss.reference_kl > 0 or "initial_logp" in config.method.reads
        initial = any(isinstance(one, SelfTeacherConfig) and one.self == "initial" for one in self.teachers.values())
        self.reference = self.scores_reference or initial  # whether the initial student is kept
        self.responses = config.rollout.prompts_per_step * config.rollout.responses_per_prompt
        self.longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens  # tokens of a response's row
        self.tokens = min(config.train.microbatch_responses, self.responses) * self.longest  # of a micro-batch
        self.threads = config.threads or 1 if device.memory is None else 1
        self.lora, self.low = config.student.lora_rank, config.student.dtype == "bfloat16"
        self.count = shapes.parameters(self.student)
        self.trained = lora_parameters(self.student, self.lora) if self.lora else self.count
        # Trained weights are float32, except under stochastic rounding.
        self.rounded = config.train.optimizer == "adamw8bit_sr"
        self.weight = BF16 if self.low and (self.lora or self.rounded) else FP32
        # The copies that autocast makes of float32 weights.
        self.copied = BF16 if self.low and self.weight == FP32 else 0
        self.gpu = device.name != "CPU"
        self.launches = LAYER_SECONDS["GPU" if self.gpu else "CPU"]
        self.vllm = self.gpu and config.rollout.engine == "vllm"
        self.sampling = () if self.vllm and self.lora else ("student",)  # weights that a rollout needs besides vLLM's
        self.kept_width = BF16 if self.low else FP32  # of keys, values and vLLM's weights
        self.token = shapes.kv_token_bytes(self.student, 1, self.kept_width)
        self.engine = self.kept_width * (self.count + (self.trained if self.lora else 0))  # vLLM's own weights
        self.weights = _weights(self)
        stays = {"none": self.weights.keys(), "teacher": {"student", "optimizer"}, "all": set[str]()}[config.offload]
        self.movable = [name for name in self.weights if name not in stays]
        self.asleep = [Item("vLLM asleep", VLLM_ASLEEP, "assumed")] if self.vllm else []
        # Bytes of vLLM's KV cache, and responses of full length that fit into the KV cache of either engine.
        self.cache = max(0, int(config.rollout.gpu_memory * (device.memory or 0)) - self.engine - VLLM_BYTES)
        self.at_once = min(config.rollout.microbatch_responses, self.responses)
        if self.vllm:
            self.at_once = self.cache // (self.token * self.longest)

    def forward(self, shape: ModelShape) -> float:
        """FLOPs of a forward pass over all prompts and responses of a step."""
        return self.responses * self.lengths.whole * shapes.forward_flops(shape, self.lengths.whole)


def local_plan(config: Config, device: Device, lengths: Lengths, *, sizes: Sizes) -> Plan:
    """Plan a validated configuration on a device; ``lengths`` determine the times."""
    run = _Run(config, device, lengths, sizes)
    student, responses = run.student, run.responses
    title, train, drawn = f"{config.method.name}: student {config.student.model_name}", config.train, config.rollout
    initial = "student" if run.lora else "reference"
    turns, sources = [("score student", student, "student", 1)], len(set(config.active_teachers.values()))
    for key, teacher in run.teachers.items():
        if isinstance(teacher, SelfTeacherConfig):
            name, member = f"the {teacher.self} student", initial if teacher.self == "initial" else "student"
        else:
            name, member = str(teacher.model_name), key
        title = f"{title}, {key} {name}"
        turns.append((f"score {key}", run.shapes.get(key, student), member, sources))
    for key, served in url_teachers(config).items():
        title = f"{title}, {key} {served.model_name} at {served.url}"
    turns += [("score reference", student, initial, 1)] if run.scores_reference else []
    phases = [_rollout(run), *(_scoring(run, *turn) for turn in turns), _update(run)]
    moved = _moved(run, {"rollout": set(run.sampling)} | {name: {member} for name, _, member, _ in turns})
    for place, phase in enumerate(phases):
        if size := moved[phase.name]:
            how = f"{phase.how}; {size / GIB:.1f} GiB over the host link"
            phases[place] = replace(phase, seconds=phase.seconds + size / device.host_link, how=how)
    mismatches = mismatches_of(config, student, run.shapes)
    steps = responses // train.minibatch_responses
    memory = f", {device.offered / GIB:.1f} GiB" if device.offered else ""
    slow = not run.gpu and (config.student.dtype != "float32" or train.microbatch_responses == 1)
    threads = f"{config.threads} thread(s)" if config.threads else "threads: torch's choice (times: of one)"
    return Plan(
        title=f"{title}, local back end",
        hardware=f"one {device.name}{f', {threads}' if device.name == 'CPU' else ''}{memory}",
        capacity=device.offered or None,
        layout=(
            contents.RankLine(0, 0, f"whole, {responses} responses", "whole" if run.teachers else "-", drawn.engine),
        ),
        phases=tuple(phases),
        host=(
            Item("batch", responses * run.longest * 40, "token ids and 8 float32 columns, 40 bytes per token"),
            *_host(run),
        ),
        checkpoint=_checkpoint(run),
        facts=(
            f"{drawn.prompts_per_step} prompts x {drawn.responses_per_prompt} responses = {responses} per step",
            f"{steps} optimizer step{'s' if steps > 1 else ''} of {train.minibatch_responses} responses in "
            f"micro-batches of {train.microbatch_responses}",
            f"room for the keys and values of {run.at_once} responses of {run.longest} tokens at once",
            f"{sum(moved.values()) / GIB:.1f} GiB to and from the device per step",
            _whole_run(config, sum(phase.seconds for phase in phases)) + (SLOW if slow else ""),
        ),
        assumptions=(
            f"{lengths.described(drawn.max_response_tokens)}; memory takes the longest, {run.longest}",
            f"{device.name}: {device.flops * run.threads / 1e9:,.0f} GFLOP/s, {device.bandwidth / 1e9:,.0f} GB/s; "
            f"{contents.REACHED}",
            f"{DECODE_STEP * 1e3:g} ms per decoding step of vLLM besides; {PROCESS_BYTES / GIB:.1f} GiB of CUDA's own, "
            f"{VLLM_BYTES / GIB:.0f} GiB of vLLM's besides weights and cache, {VLLM_ASLEEP / GIB:.1f} asleep"
            if run.vllm
            else f"{run.launches * 1e3:g} ms of launches per layer and decoding step",
            "not counted: verification, evaluation, checkpoints, a server's scores, Python and torch (about 1 GiB)",
        ),
        faults=(*mismatches, *_memory_faults(run, phases)),
        mismatches=mismatches,
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


def lora_parameters(shape: ModelShape, rank: int) -> int:
    """Parameters of an adapter on every linear layer: r (inputs + outputs) per layer."""
    return rank * shape.layers * sum(outputs + inputs for outputs, inputs in _matrices(shape))


def _matrices(shape: ModelShape) -> list[tuple[int, int]]:
    """(outputs, inputs) of every linear layer in a transformer layer."""
    hidden, feed_forward = shape.hidden, (shape.feed_forward, shape.hidden)
    attention = [(shape.query, hidden), *2 * [(shape.key_value, hidden)], (hidden, shape.query)]
    return [*attention, *2 * [feed_forward], feed_forward[::-1]]


def pinned_bytes(shape: ModelShape, width: float) -> int:
    """Pinned host memory of the matrices, `width` bytes per value: torch rounds each up to a power of two."""
    tables = (1 if shape.tied else 2) * [(shape.vocabulary, shape.hidden)]
    sizes = (int(width * outputs * inputs) for outputs, inputs in shape.layers * _matrices(shape) + tables)
    return sum(1 << (size - 1).bit_length() for size in sizes)


def quantized_bytes(shape: ModelShape, quantize: str, width: int) -> int:
    """A teacher with quantized linear layers: int8 adds 5 bytes per row, nf4 adds 4 bytes per 64 weights."""
    matrices = shape.layers * _matrices(shape)
    weights = sum(outputs * inputs for outputs, inputs in matrices)
    rounded = weights // 2 + weights // 16
    if quantize == "int8":
        rounded = weights + 5 * sum(outputs for outputs, _ in matrices)
    return rounded + width * (shapes.parameters(shape) - weights)


def _weights(run: _Run) -> dict[str, Item]:
    """All weights and moments of the run, under the names of `local.memory.Placement`."""
    kind, size = "float32" if run.weight == FP32 else "bfloat16", run.weight * run.count
    how = f"{run.count:,} parameters, {kind}"
    small = run.config.train.optimizer != "adamw"
    moments = int((SMALL_MOMENTS if small else 2 * FP32) * run.trained)
    members = {
        "student": Item("student weights", size, how),
        "optimizer": Item("optimizer", moments, f"AdamW's two moments, {'8 bits' if small else 'float32'}"),
    }
    if run.lora:
        how = f"{how}; adapter of {run.trained:,}, float32"
        members["student"] = Item("student weights", size + FP32 * run.trained, how)
    elif run.reference:  # with its adapter off, a student is its own reference
        members["reference"] = Item("reference weights", size, f"the initial student, {kind}")
    for key, teacher in run.teachers.items():
        if isinstance(teacher, TeacherConfig):
            held, width = shapes.parameters(run.shapes[key]), BF16 if teacher.dtype == "bfloat16" else FP32
            size, how = width * held, f"{held:,} parameters, {teacher.dtype}"
            if teacher.quantize != "none":
                size, how = quantized_bytes(run.shapes[key], teacher.quantize, width), f"{how}; {teacher.quantize}"
            members[key] = Item(f"{key} weights", size, how)
    return members


def _resident(run: _Run, *needed: str) -> list[Item]:
    """What is on the device in a phase: what the phase needs, and what is never offloaded."""
    items = [item for name, item in run.weights.items() if name in needed or name not in run.movable]
    if "optimizer" in needed:
        width = BF16 if run.rounded else FP32
        items.append(Item("gradients", width * run.trained, "bfloat16" if run.rounded else "float32"))
    if run.gpu:
        items.append(Item("process", PROCESS_BYTES, "CUDA context and libraries"))
    return items


def _moved(run: _Run, needs: dict[str, set[str]]) -> dict[str, int]:
    """Bytes over the host link per phase, from the end of one update to the end of the next.

    Frozen weights leave without a copy; vLLM with an adapter fetches its weights from host memory and returns them.
    """
    movable, trained = set(run.movable), {"student", "optimizer"}
    present, moved = trained & movable, {}
    for phase, needed in (needs | {"update": trained}).items():
        leaving, coming = present - needed, (needed & movable) - present
        moved[phase] = sum(run.weights[name].size for name in coming | leaving & trained)
        present = present - leaving | coming
    if run.vllm and run.lora:
        moved["rollout"] += 2 * run.engine
    return moved


def _host(run: _Run) -> Iterator[Item]:
    """What is offloaded to host memory; for a GPU it is pinned, and torch rounds each tensor up to a power of two."""
    for name in run.movable:
        size = run.weights[name].size
        if run.gpu and name == "optimizer" and run.lora:
            size *= 2  # at most: small tensors
        elif run.gpu:
            shape = run.shapes.get(name, run.student)
            copies = 2 if name == "optimizer" else 1
            # The scales of few bits and an adapter are small beside the rest.
            width = round(2 * size / copies / shapes.parameters(shape)) / 2
            size = max(size, copies * pinned_bytes(shape, width))
        yield Item(run.weights[name].name, size, "while a phase does not need it" + (", pinned" if run.gpu else ""))
    if run.vllm and run.lora:
        yield Item("vLLM weights", pinned_bytes(run.student, run.kept_width), "while it sleeps, pinned")


def _checkpoint(run: _Run) -> Item:
    width = (FP32 if run.lora else run.weight) + (2 * FP32 if run.config.train.optimizer == "adamw" else SMALL_MOMENTS)
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
        *_resident(run, *run.sampling),
        Item("vLLM weights", run.engine, f"{run.kept_width} bytes per parameter"),
        Item("vLLM activations and graphs", VLLM_BYTES, "assumed"),
        Item("KV cache", max(run.longest * run.token, run.cache), f"{share}; at least one response"),
    )
    at_once = max(1, min(run.responses, run.cache // (run.token * lengths.whole)))
    flops = shapes.forward_flops(run.student, 2 * lengths.prompt + lengths.response)
    seconds = engine_seconds(
        run.device, ends, at_once, lengths.prompt, weights=run.engine, cached=run.token, flops=flops
    )
    # A group's prompt is computed once: vLLM's prefix cache serves the other responses.
    prefill = run.config.rollout.prompts_per_step * lengths.prompt * shapes.forward_flops(run.student, lengths.prompt)
    seconds += run.device.forward_s(prefill, 1)
    return Phase("rollout", "the device", items, seconds, f"{run.responses} responses, {at_once} at once")


def _batches(run: _Run, ends: list[float]) -> Phase:
    shape, lengths, at_once, token = run.student, run.lengths, run.at_once, run.token
    cache = f"{at_once} responses of {run.longest} tokens, {token} bytes per token"
    logits, how = 4 * FP32 * at_once * shape.vocabulary, "of one token per response, four times in float32"
    items = _resident(run, "student")
    items += [Item("KV cache", at_once * run.longest * token, cache), Item("logits being drawn from", logits, how)]
    if run.copied:
        items.append(Item("bfloat16 weights", run.copied * run.count, "kept by autocast from token to token"))
    waves = [max(ends[first : first + at_once]) for first in range(0, run.responses, at_once)]
    weights = (run.copied or run.weight) * run.count
    cached = at_once * token * sum(length * (lengths.prompt + length / 2) for length in waves)
    flops = at_once * sum(waves) * shapes.forward_flops(shape, lengths.whole)
    work = run.device.decode_s(sum(waves) * weights, cached, flops, run.threads)
    waited = sum(waves) * shape.layers * run.launches
    mean = sum(waves) / len(waves)
    how = f"{len(waves)} x {mean:.0f} decoding steps: {work:.1f} s of work, {waited:.1f} s of launches"
    return Phase("rollout", "the device", tuple(items), work + waited, how)


def _scoring(run: _Run, name: str, shape: ModelShape, member: str, parts: int) -> Phase:
    """Scoring by one model; several teachers are assumed to share the responses equally, whatever the routing."""
    tokens, flops = run.tokens, run.forward(shape) / parts
    widest = FP32 * tokens * (3 * shape.hidden + max(2 * shape.query + 2 * shape.key_value, 3 * shape.feed_forward))
    logits = 2 * min(CHUNK_BYTES["cuda" if run.gpu else "cpu"], FP32 * tokens * shape.vocabulary)
    logits += 0 if member in run.shapes else run.copied * shape.vocabulary * shape.hidden
    items = (
        *_resident(run, member),
        Item("activations", widest, f"one layer, {tokens} tokens, no gradient"),
        Item("logits", logits, "one chunk and its working copy, float32"),
        *run.asleep,
    )
    how = _tera(flops) + (f", 1/{parts} of the responses assumed" if parts > 1 else "")
    return Phase(name, "the device", items, run.device.forward_s(flops, run.threads), how)


def _update(run: _Run) -> Phase:
    again = run.config.train.activation_checkpointing
    shape, low, flops = run.student, run.low, (4 if again else 3) * run.forward(run.student)
    layer = kept_bytes(shape, run.tokens, bfloat16=low)
    gradients = 0  # `kept_bytes` with its copies has room for them
    if run.lora:
        layer = adapted_bytes(shape, run.tokens, run.lora, bfloat16=low)
        gradients = 2 * FP32 * run.tokens * shape.feed_forward
    kept, how_kept = shape.layers * layer, f"{shape.layers} layers, {run.tokens} tokens, all kept"
    # These follow one another, so the largest counts: the logits, a layer, and the sum of the output layer's gradients.
    work = [(logits_bytes(shape, run.tokens, bfloat16=low, gpu=run.gpu), "logits", "one chunk and its gradient")]
    if again:
        kept = (shape.layers + 5) * run.tokens * shape.hidden * run.weight
        how_kept = f"{shape.layers} layers' inputs, the features and their gradients, {run.tokens} tokens"
        work.append((layer + gradients, "layer at work", "one recomputed layer"))
    if not run.lora:
        table = 3 * run.weight * shape.vocabulary * shape.hidden
        work.append((table, "output layer at work", "its gradient, the chunk's, and their sum"))
    size, name, how = max(work)
    items = (
        *_resident(run, "student", "optimizer"),
        Item("activations", kept, how_kept),
        Item(name, size, how),
        *run.asleep,
    )
    return Phase("update", "the device", items, run.device.train_s(flops, run.threads), _tera(flops))


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
        yield from cache_faults(run.config, run.cache // run.token)
