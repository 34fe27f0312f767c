"""The plan of a run inside NeMo-RL: layout, memory and time of each phase, faults, and changes that would fit.

Times are FLOPs, bytes read and bytes moved, divided by assumed rates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import cache, partial
from heapq import heapreplace
from statistics import NormalDist

from nemo_uecr.config.load import value_at
from nemo_uecr.nemo.layout import Job
from nemo_uecr.nemo.recipe import lag_of
from nemo_uecr.plan import contents, shapes
from nemo_uecr.plan.contents import GIB, Device, Item, Lengths, Overlapped, Phase, Plan
from nemo_uecr.plan.faults import job_faults, refuse
from nemo_uecr.plan.overlap import STEPS, WARM_UP, Pace, overlapped
from nemo_uecr.plan.shapes import BF16, FP32, Sharded

# Time and memory that no formula gives, measured by others; tests/plan/test_published.py has their runs. Issues and
# pulls without a name are NeMo-RL's.
DECODE_STEP = 0.002  # s of overhead per decoding step: vLLM's scheduler, launches, sampling
NETWORK_SUM = 40e-6  # s of a decoding step's sum over tensor ranks of several nodes, two in each layer; assumed
REFIT_S, REFIT_RATE = 3.0, 12e9  # s per refit, and bytes/s of all weights through every rank (NeMo-RL issue 959)
STEP_S, STEP_SHARE = 3.0, 0.02  # s between phases, and a share of them: 3 to 14 s (issue 959), 4 of 67 (pull 1052)
PROCESS_BYTES = 3 * GIB // 2  # per GPU process besides its tensors: CUDA context, libraries, NCCL; assumed
VLLM_BYTES = 3 * GIB  # of vLLM besides weights and KV cache: 3.05 GiB measured for 8B on an H100 (vLLM issue 10511)
VLLM_SHARED = 11 * GIB // 2  # of a sleeping engine of several ranks: 2.4 to 7.2 GiB with its process (issue 223)
DEALS = 16  # random deals of a batch's responses to the engines, averaged for the slowest engine
WRAPPER = "policy.megatron_cfg.distributed_data_parallel_config"  # of Megatron's, whose keys a recipe sets
ABSENT = "-"  # in the layout, for a GPU without a model


class Setting:
    """A job, its models split over their GPUs, and its device."""

    def __init__(self, job: Job, device: Device, lengths: Lengths, *, stays: bool) -> None:
        """Look up the models' sizes and split them; ConfigError if they cannot be placed as configured.

        A teacher that ``stays`` shares the student's GPUs in every phase, and the student needs not leave for it.
        """
        self.job, self.device, self.lengths = job, device, lengths
        self.responses, self.engine_ranks = job.responses, job.engine_ranks
        found = {key: shapes.shape_of(model.name, role=model.key) for key, model in job.models.items()}
        refuse(job_faults(job, found))
        shape = found.pop("student")
        # The largest of several teachers stands for all of them.
        largest = max(found, key=lambda key: shapes.parameters(found[key]), default=None)
        scorer = None if largest is None else job.teachers[largest]
        self.scorer = scorer
        self.turns = len({model.name for model in job.teachers.values()})  # two names of one model share it
        adapter = shapes.adapter_of(shape, value_at(job.student.policy, "megatron_cfg.peft") or {})
        self.student = student = Sharded(shape, job.student.parallel, job.student.gpus, adapter)
        #: Bytes of a gradient in Megatron's buffer.
        self.gradient = FP32 if job.at(f"{WRAPPER}.grad_reduce_in_fp32") else BF16
        # None if the method reads no teacher; `beside` is the teacher if it shares the student's GPUs.
        self.teacher = None if scorer is None else Sharded(found[str(largest)], scorer.parallel, scorer.gpus)
        self.beside = None if job.section.dedicated_gpus else self.teacher
        self.stays = stays and self.beside is not None
        # The GPUs of every phase except a dedicated teacher's, and the workers on them.
        shared = job.shares_gpus
        # Whether the student leaves its GPUs while others work there: vLLM, or a teacher.
        self.student_leaves = shared or (self.beside is not None and not self.stays)
        self.where = "every GPU" if shared and not job.section.dedicated_gpus else "student GPUs"
        self.generates = self.where if shared else "vLLM's GPUs"
        self.processes = [_workers(1 + shared + (0 if self.beside is None else self.turns))]
        if self.beside is not None and self.stays:
            self.processes.append(
                Item("teacher that stays", self.beside.weight_bytes, "its weights, 2 bytes per parameter")
            )
        elif self.beside is not None:
            limit = next(iter(job.section.active_teachers.values())).offload_limit_mebi
            how = f"at most, offload_limit_mebi = {limit}{f' each of {self.turns}' if self.turns > 1 else ''}"
            self.processes.append(Item("teacher asleep", self.turns * limit * GIB // 1024, how))
        self.awake = [*self.processes] if shared else [_workers(1)]  # while vLLM generates
        if shared and self.engine_ranks > 1:
            self.processes.append(Item("vLLM asleep", VLLM_SHARED, "CUDA graphs and NCCL of several ranks; at most"))
        self.engines = job.generation_gpus // self.engine_ranks  # of vLLM, independent ones
        # The student's weights on each rank of an engine.
        self.vllm_bytes = BF16 * shapes.parameters(shape) // self.engine_ranks
        how = f"2 bytes per parameter over {self.engine_ranks} ranks"
        self.vllm_weights = Item("vLLM weights", self.vllm_bytes, how)
        self.vllm_experts = BF16 * shapes.routed_parameters(shape) // self.engine_ranks  # those of its experts
        # vLLM's KV cache, and the keys and values of one token, on a rank of an engine.
        self.share = job.at("policy.generation.vllm_cfg.gpu_memory_utilization")
        self.cache_bytes = max(0, int(self.share * (device.memory or 0)) - self.vllm_bytes - VLLM_BYTES)
        self.token_bytes = shapes.kv_token_bytes(shape, self.engine_ranks, BF16)
        # On a rank of the pipeline stage with the most.
        self.optimizer_bytes = max(map(student.optimizer_bytes, range(student.parallel.pipeline)))
        self.reference = job.at("loss_fn.reference_policy_kl_penalty") > 0
        #: What of the student stays on its GPUs between its updates.
        self.kept = [] if self.student_leaves else [_optimizer(student, self.optimizer_bytes)]
        self.trained_tokens = job.student.microbatch_tokens("train")


def teacher_stays(job: Job, device: Device, lengths: Lengths) -> bool:
    """Whether the teacher stays on the student's GPUs: as `uecr.teacher.stays` says, and by default where it fits.

    It can where vLLM has GPUs of its own, and fits where every phase does with its weights beside the student's.
    """
    stated = {section.stays for section in job.section.active_teachers.values()} - {None}
    if stated:
        return all(stated)
    if job.shares_gpus or job.section.dedicated_gpus or not job.teachers or device.memory is None:
        return False
    setting = Setting(job, device, lengths, stays=True)
    return all(phase.size <= device.offered for phase in (refit(setting), *scoring(setting), train(setting)))


def nemo_plan(job: Job, device: Device, lengths: Lengths) -> Plan:
    """Plan a job on GPUs of this kind; ``lengths`` determine the times."""
    setting = Setting(job, device, lengths, stays=teacher_stays(job, device, lengths))
    student, teacher = setting.student, setting.teacher
    phases = step_phases(setting)
    count = shapes.parameters(student.shape)
    if student.adapter is not None:
        count = student.adapter.parameters(student.shape, student.shape.layers, last=True)
    title = f"{job.section.method.name}: student {job.student.name}"
    if teacher is not None:
        own = job.section.dedicated_gpus
        where = f"on {own} GPU{'s' if own > 1 else ''} of its own" if own else "on the same GPUs"
        if setting.beside is not None and not job.shares_gpus:
            where = "which stays on the student's GPUs" if setting.stays else "which takes turns with it"
        named = ", ".join(f"{key} {model.name}" for key, model in job.teachers.items())
        title = f"{title}, {named} {where}"
    return Plan(
        title=title,
        hardware=f"{job.nodes} x {job.gpus_per_node} {device.name}, {device.offered / GIB:.1f} GiB each",
        capacity=device.offered,
        layout=tuple(_layout(setting)),
        phases=tuple(phases),
        host=tuple(_host(setting)),
        checkpoint=Item(
            "checkpoint", 14 * count, f"{count:,} {_trained(student)}parameters, weights and optimizer, 14 bytes"
        ),
        facts=tuple(_facts(setting)),
        assumptions=_assumptions(setting),
        faults=tuple(_memory_faults(setting, phases)),
        mismatches=(),
        overlap=overlap_of(setting, phases, age) if (age := lag_of(job.values)) else None,
    )


def step_phases(setting: Setting) -> list[Phase]:
    """The phases of a step in their order."""
    phases = [refit(setting), rollout(setting), *scoring(setting), train(setting)]
    overlapping = bool(lag_of(setting.job.values))  # then the driver's work is beside the rollout
    seconds = STEP_S + STEP_SHARE * sum(phase.seconds for phase in phases if not overlapping or phase.name != "rollout")
    how = f"{STEP_S:g} s and {STEP_SHARE:.0%}: verification, the driver's data, metrics"
    return [*phases, Phase("between phases", setting.where, tuple(setting.processes), seconds, how)]


# -- phases of a step ------------------------------------------------------------------------------------------------


def refit(setting: Setting) -> Phase:
    """The optimizer leaves, vLLM wakes, and every rank gathers the whole student, tensor by tensor."""
    student, device, vllm = setting.student, setting.device, setting.vllm_bytes
    table = BF16 * student.shape.vocabulary * student.shape.hidden
    shared = setting.job.shares_gpus
    beside = [setting.vllm_weights] if shared else setting.kept
    items = (
        *setting.processes,
        _weights("student", student),
        *beside,
        Item("largest tensor on its way", table, "the embedding, gathered whole, 2 bytes per value"),
    )
    moved = setting.optimizer_bytes + student.weight_bytes + vllm if shared else 0
    sent = BF16 * shapes.parameters(student.shape)
    seconds = REFIT_S + moved / device.host_link + sent / REFIT_RATE
    how = f"{_gib(sent)} through every rank, and {REFIT_S:g} s"
    how = f"{_gib(moved)} over the host link, {how}" if moved else how
    return Phase("refit", setting.where, items, seconds, how)


def rollout(setting: Setting) -> Phase:
    """Generation within vLLM's share of the device; it ends with the slowest engine, and the average one waits."""
    share = f"rest of gpu_memory_utilization = {setting.share} of the device"
    items = (
        *setting.awake,
        setting.vllm_weights,
        Item("vLLM activations and graphs", VLLM_BYTES, "assumed"),
        Item("KV cache", setting.cache_bytes, share),
    )
    engines, each = setting.engines, -(-setting.responses // setting.engines)
    at_once = max(1, min(each, setting.cache_bytes // (setting.token_bytes * setting.lengths.whole)))
    drawn = list(response_lengths(setting.lengths, setting.job.longest_response, setting.responses))
    prompt, weights, cached = setting.lengths.prompt, setting.vllm_bytes, setting.token_bytes
    flops = shapes.forward_flops(setting.student.shape, 2 * prompt + setting.lengths.response)
    flops /= setting.engine_ranks
    # A group's prompt is computed once: vLLM's prefix cache serves the other responses.
    prefill = setting.job.prompts * prompt * shapes.forward_flops(setting.student.shape, prompt)
    dealer, slowest, average = random.Random(0), 0.0, 0.0
    for _ in range(DEALS):
        dealer.shuffle(drawn)
        ends = [
            engine_seconds(
                setting.device,
                dealt,
                at_once,
                prompt,
                weights=weights,
                cached=cached,
                flops=flops,
                experts=(setting.vllm_experts, setting.student.shape),
                more=_network_s(setting),
            )
            for dealt in (drawn[one::engines] for one in range(engines))
        ]
        slowest += max(ends) / DEALS
        average += sum(ends) / engines / DEALS
    how = f"{each} responses per engine, {at_once} at once; {average:,.1f} s on the average one, which then waits"
    seconds = slowest + setting.device.forward_s(prefill, setting.student.gpus)
    if setting.job.shares_gpus:
        seconds += setting.vllm_bytes / setting.device.host_link
    return Phase("rollout", setting.generates, items, seconds, how, slowest - average)


def overlap_of(setting: Setting, phases: Sequence[Phase], age: int) -> Overlapped:
    """The step in which rollouts of up to ``age`` updates before go on while the student trains."""
    job, lengths, prompt = setting.job, setting.lengths, setting.lengths.prompt
    drawn = response_lengths(lengths, job.longest_response, setting.responses)
    size = setting.responses // job.prompts

    def batch(step: int) -> list[Sequence[float]]:
        shuffled = random.Random(step).sample(drawn, len(drawn))
        return [shuffled[first : first + size] for first in range(0, len(shuffled), size)]

    def read(running: int) -> float:
        shape = setting.student.shape
        unread = 1.0 - shapes.chosen_share(shape, running) if shape.experts else 0.0
        return setting.vllm_bytes - unread * setting.vllm_experts

    one_token = shapes.forward_flops(setting.student.shape, 2 * prompt + lengths.response)
    pace = Pace(
        setting.device,
        weights=read,
        cached=setting.token_bytes,
        flops=one_token / setting.engine_ranks,
        more=DECODE_STEP + _network_s(setting),
        prompt=prompt,
        prefill=setting.device.forward_s(
            prompt * shapes.forward_flops(setting.student.shape, prompt), setting.engine_ranks
        ),
        at_once=max(1, setting.cache_bytes // (setting.token_bytes * lengths.whole)),
    )
    in_flight = bool(job.at("grpo.async_grpo.in_flight_weight_updates"))
    seconds = {phase.name: phase.seconds for phase in phases}
    sent, training = seconds.pop("refit"), sum(seconds.values()) - seconds["rollout"]
    run = partial(overlapped, pace, batch, engines=setting.engines, age=age, in_flight=in_flight)
    found = run(training=training, refit=sent)
    return Overlapped(
        age, in_flight, job.student.gpus, job.generation_gpus, found.seconds, found.training,
        run(training=0.0, refit=0.0).seconds, found.idle, found.policies, found.most_policies,
    )  # fmt: skip


@cache
def response_lengths(lengths: Lengths, longest: int, count: int) -> tuple[float, ...]:
    """Quantiles (i + 1/2) / count of min(exp(mu + sigma Z), longest), Z normal, with mu such that the mean is right."""
    spread = [lengths.sigma * NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]
    most = math.log(longest)
    low, high = math.log(lengths.response) - spread[-1], most - spread[0]
    for _ in range(60):
        middle = (low + high) / 2
        drawn = [math.exp(min(middle + one, most)) for one in spread]
        low, high = (middle, high) if sum(drawn) < count * lengths.response else (low, middle)
    return tuple(drawn)


def engine_seconds(
    device: Device, drawn: Sequence[float], at_once: int, prompt: int, *, weights: int, cached: int, flops: float,
    experts: tuple[int, shapes.ModelShape] | None = None, more: float = 0.0,
) -> float:  # fmt: skip
    """Seconds of a vLLM engine: each decoding step reads the weights, and the keys and values of the running responses.

    ``drawn`` are the lengths of the responses in order, each after ``prompt`` tokens; ``at_once`` of them fit into
    the KV cache. ``weights`` are the model's bytes, ``cached`` those of one token's keys and values. Of a mixture,
    ``experts`` are the bytes of all experts and its shape: a step reads those that the running responses choose. A step
    takes ``more`` seconds besides.
    """
    ends = [0.0] * at_once  # a response takes the place that is free first
    for length in drawn:
        heapreplace(ends, ends[0] + length)
    context = sum(length * (prompt + length / 2) for length in drawn)
    read = max(ends) * weights
    if experts is not None and experts[1].experts:
        routed, shape = experts
        before, unread = 0.0, 0.0
        for place, end in enumerate(sorted(ends)):  # until then, so many responses run
            unread += (end - before) * (1.0 - shapes.chosen_share(shape, at_once - place))
            before = end
        read -= unread * routed
    return device.decode_s(read, cached * context, sum(drawn) * flops, 1) + max(ends) * (DECODE_STEP + more)


def _network_s(setting: Setting) -> float:
    """Seconds of a decoding step in which the tensor ranks of an engine on several nodes sum over the network."""
    tensor = setting.job.at("policy.generation.vllm_cfg.tensor_parallel_size")
    return 2 * setting.student.shape.layers * NETWORK_SUM if setting.job.gpus_per_node % tensor else 0.0


def scoring(setting: Setting) -> list[Phase]:
    """One forward pass of each model over all prompts and responses, plus its transfer to the GPU if it is offloaded.

    One pass scores the student at both temperatures; the reference uses NeMo-RL's own scoring.
    """
    job, student, teacher, scorer = setting.job, setting.student, setting.teacher, setting.scorer
    link, chunk, phases = setting.device.host_link, job.section.chunk_tokens, []
    stages = range(student.parallel.pipeline)
    if teacher is not None and scorer is not None:
        whole = scorer.microbatch_tokens("logprob")
        tokens, flops, sizes = whole // teacher.parallel.context, _flops(setting, teacher), (setting.responses, whole)
        logits = teacher.scoring_logits_bytes(tokens, chunk, divided=False)
        held = Item("logits", logits, "bfloat16 over all tokens, one chunk again")
        share = contents.forward_share(mixture=bool(teacher.shape.experts))
        seconds, more = _in_parallel(setting, teacher, setting.device.forward_s(flops, teacher.gpus, share), 1, *sizes)
        where, how, workers = "teacher GPUs", "the student's GPUs wait", [_workers(1)]
        if setting.beside is not None:
            own = ("teacher asleep", "teacher that stays")
            where, workers = setting.where, [one for one in setting.processes if one.name not in own]
            how = "it stays where it is"
        if setting.stays:
            workers += [
                *setting.kept,
                _weights("student", student),
                max((_gradients(setting, stage) for stage in stages), key=lambda item: item.size),
            ]
        elif setting.beside is not None:
            # A frozen model is not copied back; where vLLM is apart, the student leaves now.
            moved = teacher.weight_bytes
            moved += 0 if job.shares_gpus else student.weight_bytes + setting.optimizer_bytes
            seconds += moved / link
            how = f"{_gib(moved)} over the host link"
        how = f"{_peta(flops)} on {teacher.gpus} GPUs at {share:.0%}{more}; {how}"
        items = (*workers, *_forward_items("teacher", teacher, tokens), held)
        phases.append(Phase("score teacher", where, items, seconds, how))
    whole = job.student.microbatch_tokens("logprob")
    tokens, flops, sizes = whole // student.parallel.context, _flops(setting, student), (setting.responses, whole)
    reference, weights = setting.reference, student.weight_bytes
    logits = student.scoring_logits_bytes(tokens, chunk, divided=job.at("policy.generation.temperature") != 1.0)
    how = "bfloat16 over all tokens, one chunk again and divided by T_r"
    if reference:
        logits = max(logits, student.reference_logits_bytes(tokens, chunk))
        how = "bfloat16 over all tokens, three float32 buffers of a chunk (reference)"
    items = (
        *setting.processes, *setting.kept, *_forward_items("student", student, tokens), Item("logits", logits, how),
    )  # fmt: skip
    share = contents.forward_share(mixture=bool(student.shape.experts))
    seconds, more = _in_parallel(setting, student, setting.device.forward_s(flops, student.gpus, share), 1, *sizes)
    how = f"{_peta(flops)} at {share:.0%}{more}"
    fetched = weights / link if setting.student_leaves else 0.0
    phases.append(Phase("score student", setting.where, items, seconds + fetched, how))
    if reference:
        how = f"{_peta(flops)}; {_gib(2 * weights)} of weights swapped over the host link"
        phases.append(Phase("score reference", setting.where, items, seconds + 2 * weights / link, how))
    return phases


def train(setting: Setting) -> Phase:
    """Forward, backward at twice its cost, the layers again with checkpointing; then gradients and weights are sent.

    LoRA has no gradients of the weights themselves, and so a backward at once the forward's cost.
    """
    device, student, job = setting.device, setting.student, setting.job
    stages = [_train_items(setting, stage) for stage in range(student.parallel.pipeline)]
    items = max(stages, key=lambda items: sum(item.size for item in items))
    forward = _flops(setting, student)
    backward = 2 if student.adapter is None else 1
    flops, again = (1 + backward) * forward, bool(job.at("policy.megatron_cfg.activation_checkpointing"))
    if again:
        head = 2.0 * student.shape.vocabulary * student.shape.hidden
        flops += forward - head * setting.responses * setting.lengths.whole
    sizes = (job.minibatch, setting.trained_tokens)
    share = contents.train_share(mixture=bool(student.shape.experts))
    compute, more = _in_parallel(setting, student, device.train_s(flops, student.gpus, share), 3 + again, *sizes)
    steps = setting.responses // job.minibatch
    sent = (student.reduced_bytes(stage, setting.gradient) for stage in range(student.parallel.pipeline))
    travelling = steps * max(sent)
    link = device.peer_link if job.nodes == 1 else device.network
    seconds = compute + travelling / link
    if setting.student_leaves:
        seconds += setting.optimizer_bytes / device.host_link
    how = f"{_peta(flops)} at {share:.0%}, {steps} optimizer step{'s' if steps > 1 else ''}{more}"
    return Phase("train", setting.where, tuple(items), seconds, how)


def _in_parallel(
    setting: Setting, model: Sharded, compute: float, passes: int, responses: int, microbatch: int
) -> tuple[float, str]:
    """``compute`` seconds plus those of tensor-parallel sums, all-to-all and the pipeline bubble, and these in words.

    A rank sends `Sharded.summed_bytes` to its tensor ranks and `dispatched_bytes` to its expert ranks in each of the
    ``passes``; a pipeline takes (stages - 1) / micro-batches longer than its work, with the micro-batches of a rank's
    share of ``responses``.
    """
    parallel, length, device = model.parallel, setting.lengths.whole, setting.device
    per_node = setting.job.gpus_per_node
    link = device.network if per_node % parallel.tensor else device.peer_link
    tokens = setting.responses * length // model.sharing
    sums = passes * model.summed_bytes(tokens) / link
    away = device.network if per_node % (parallel.expert * parallel.expert_tensor) else device.peer_link
    copies = passes * model.dispatched_bytes(tokens) / away
    bubble = (parallel.pipeline - 1) / max(1.0, responses / model.data * length / microbatch)
    words = f"; tensor sums {sums:.1f} s" * (sums > 0) + f"; all-to-all {copies:.1f} s" * (copies > 0)
    words += f"; pipeline bubble {bubble:.0%}" * (bubble > 0)
    return (compute + sums + copies) * (1 + bubble), words


def _flops(setting: Setting, model: Sharded) -> float:
    return shapes.forward_flops(model.shape, setting.lengths.whole) * setting.responses * setting.lengths.whole


def _train_items(setting: Setting, stage: int) -> list[Item]:
    student, job, pipeline = setting.student, setting.job, setting.student.parallel.pipeline
    tokens, held = setting.trained_tokens // student.parallel.context, student.parameters(stage)
    layer, last = student.kept_bytes(tokens), stage == pipeline - 1
    if job.at("policy.megatron_cfg.activation_checkpointing"):
        kept = student.checkpointed_bytes(stage, tokens)
        how = f"inputs of {len(student.layers(stage))} layers x {pipeline - stage} micro-batches in flight"
        # A recomputed layer has its activations and their gradients.
        working = Item("layer at work", 2 * layer, "one recomputed layer, with its gradients")
    else:
        kept, how = (pipeline - stage) * len(student.layers(stage)) * layer, "every layer's"
        working = Item("layer at work", layer, "gradients of one layer")
    chunk = job.at("policy.logprob_chunk_size") or tokens
    logits = student.train_logits_bytes(tokens, chunk) if last else 0
    if logits > working.size:  # the logits are freed before the layers run backward, so the larger counts
        working = Item("logits", logits, "bfloat16 logits and gradient, one chunk in float32")
    optimizer = student.optimizer_bytes(stage)
    return [
        *setting.processes,
        Item("student weights", BF16 * held, f"{held:,} parameters of stage {stage}, 2 bytes"),
        _gradients(setting, stage),
        _optimizer(student, optimizer),
        Item("activations", kept, how),
        *_routes(student, tokens),
        *(_gathered(student, tokens) if last else []),
        working,
    ]


def _forward_items(role: str, model: Sharded, tokens: int) -> list[Item]:
    layer = Item("activations", model.forward_bytes(tokens), f"one layer, {tokens} tokens, no gradient")
    return [_weights(role, model), layer, *_routes(model, tokens), *_gathered(model, tokens)]


def _weights(role: str, model: Sharded) -> Item:
    return Item(f"{role} weights", model.weight_bytes, f"{model.most_parameters:,} parameters, 2 bytes")


def _gradients(setting: Setting, stage: int) -> Item:
    """Megatron's buffer: float32, or the weights' bfloat16 with `grad_reduce_in_fp32: false`."""
    student, width = setting.student, setting.gradient
    kind = "float32" if width == FP32 else "bfloat16"
    how = f"{kind} buffer, {width} bytes per {_trained(student)}parameter, on every data-parallel rank"
    return Item("gradients", width * sum(student.trained_parameters(stage)), how)


def _optimizer(model: Sharded, size: int) -> Item:
    return Item("optimizer", size, f"10 bytes per {_trained(model)}parameter over {_over(model)} ranks")


def _trained(model: Sharded) -> str:
    return "" if model.adapter is None else "adapter "


def _over(model: Sharded) -> str:
    """Ranks over which an optimizer is sharded, in words."""
    return f"{model.sharing}, experts over {model.expert_sharing}," if model.shape.experts else f"{model.sharing}"


def _routes(model: Sharded, tokens: int) -> list[Item]:
    size, how = model.routes_bytes(tokens), f"what the dispatchers of {model.most_layers} layers keep, {tokens} tokens"
    return [Item("routes to experts", size, how)] if size else []


def _gathered(model: Sharded, tokens: int) -> list[Item]:
    size, how = model.gathered_bytes(tokens), f"{tokens} tokens x {model.shape.hidden}, sequence parallel"
    return [Item("gathered states", size, how)] if size else []


def _workers(count: int) -> Item:
    return Item("processes", count * PROCESS_BYTES, f"{count} workers, CUDA context and NCCL; assumed")


def _host(setting: Setting) -> Iterator[Item]:
    """Host memory of a node while everything except vLLM is offloaded."""
    student = setting.student
    ranks = min(student.gpus, setting.job.gpus_per_node)
    if setting.student_leaves:
        yield Item("student weights", ranks * student.weight_bytes, f"{ranks} ranks, 2 bytes per parameter")
        yield Item("optimizer", ranks * setting.optimizer_bytes, f"{ranks} ranks, 10 bytes per parameter, sharded")
    if setting.job.shares_gpus:
        yield Item("vLLM weights", ranks * setting.vllm_bytes, "copy of its sleep level 1")
    if setting.reference:
        yield Item("reference weights", ranks * student.weight_bytes, "initial student, always in host memory")
    if (teacher := setting.beside) is not None and not setting.stays:
        held, several = setting.turns * ranks * teacher.weight_bytes, f"{setting.turns} x " * (setting.turns > 1)
        yield Item("teacher weights", held, f"{several}{ranks} ranks, 2 bytes per parameter")
    width = shapes.INT64 + 8 * FP32
    batch = setting.responses * setting.job.longest * width
    yield Item("batch on the driver", batch, f"token ids and 8 float32 columns, {width} bytes per token")


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _peta(flops: float) -> str:
    return f"{flops / 1e15:,.1f} PFLOP"


# -- layout and facts ------------------------------------------------------------------------------------------------


def _layout(setting: Setting) -> Iterator[contents.RankLine]:
    """One line per GPU, in rank order: the student's, then those that vLLM or a teacher has for itself."""
    per_node, ranks = setting.job.gpus_per_node, setting.engine_ranks
    student, teacher, beside = setting.student, setting.teacher, setting.beside

    def engine(rank: int) -> str:
        number, part = divmod(rank, ranks)
        return f"engine {number}/{setting.engines}" + (f", tensor {part}/{ranks}" if ranks > 1 else "")

    for rank in range(student.gpus):
        yield contents.RankLine(
            *divmod(rank, per_node),
            f"{_shard(student, rank, setting.responses)}; optimizer 1/{student.sharing}"
            + (f", of experts 1/{student.expert_sharing}" if student.shape.experts else ""),
            ABSENT if beside is None else _shard(beside, rank, setting.responses),
            engine(rank) if setting.job.shares_gpus else ABSENT,
        )
    taken = student.gpus
    if not setting.job.shares_gpus:
        for rank in range(setting.job.generation_gpus):
            yield contents.RankLine(*divmod(taken + rank, per_node), ABSENT, ABSENT, engine(rank))
        taken += setting.job.generation_gpus
    if teacher is not None and beside is None:
        for rank in range(teacher.gpus):
            held = _shard(teacher, rank, setting.responses)
            yield contents.RankLine(*divmod(taken + rank, per_node), ABSENT, held, ABSENT)


def _shard(model: Sharded, rank: int, responses: int) -> str:
    (tensor, context, data, stage), parallel = model.place(rank), model.parallel
    layers, cut = model.layers(stage), parallel.pipeline > 1
    parts = (
        f"layers {layers.start}-{layers.stop - 1}",
        "embedding" if cut and stage == 0 else "",
        "output" if cut and stage == parallel.pipeline - 1 else "",
        f"tensor {tensor}/{parallel.tensor}" if parallel.tensor > 1 else "",
        f"context {context}/{parallel.context}" if parallel.context > 1 else "",
        f"experts {model.expert_place(rank)}/{parallel.expert}" if parallel.expert > 1 else "",
        f"data {data}/{model.data}: {-(-responses // model.data)} responses",
    )
    return ", ".join(filter(None, parts))


def _facts(setting: Setting) -> Iterator[str]:
    job, student, teacher = setting.job, setting.student, setting.teacher
    each, rest = divmod(setting.responses, setting.engines)
    size, longest, more = job.minibatch, job.longest, f" ({rest} engines take one more)"
    steps, at_once = setting.responses // size, setting.cache_bytes // (setting.token_bytes * longest)
    yield f"{job.prompts} prompts x {job.responses // job.prompts} responses = {setting.responses} per step"
    yield (
        f"{steps} optimizer step{'s' if steps > 1 else ''} of {size} responses, {size // student.data} on each of "
        f"{student.data} data-parallel ranks"
    )
    yield (
        f"{setting.engines} vLLM engines, {each} responses each{more if rest else ''}; the KV cache of one holds "
        f"{at_once} responses of {longest} tokens"
    )
    split = "megatron_cfg.tensor_model_parallel_size"
    policy = job.student.policy
    for key, model in (("student", student), ("teacher", teacher)):
        if model is not None and model.shape.experts:
            yield (
                f"{key}: a mixture of {model.shape.experts} experts in each layer, {model.shape.experts_per_token} of "
                f"a token; {shapes.active_parameters(model.shape) / 1e9:.2f} of "
                f"{shapes.parameters(model.shape) / 1e9:.2f} billion parameters work on each token"
            )
    for key in ("megatron_cfg.peft.enabled", "megatron_cfg.fp8_cfg.enabled", "megatron_cfg.mtp_num_layers"):
        if (given := value_at(policy, key)) and not ("peft" in key and student.adapter):
            yield f"warning: policy.{key}={given} is not counted; the plan is of training all weights in bfloat16"
    ranks = {f"policy.{split}": student.parallel.tensor, "vLLM's ranks": setting.engine_ranks}
    if teacher is not None:
        share, masked = -(-setting.responses // teacher.data), -setting.responses % teacher.data
        filled = f", counting {masked} masked rows that fill up the last" if masked else ""
        yield f"teacher: {share} responses on each of {teacher.data} data-parallel ranks{filled}"
        ranks[f"uecr.teacher.{split}"] = teacher.parallel.tensor
    for key, count in ranks.items():
        if job.gpus_per_node % count:
            node = f"a node of {job.gpus_per_node} GPUs"
            yield f"warning: {key}={count} does not stay within {node}; every layer sums over the network"


def _assumptions(setting: Setting) -> tuple[str, ...]:
    job, device = setting.job, setting.device
    return (
        f"{setting.lengths.described(job.longest_response)}; memory takes the longest, {job.longest}",
        f"{device.name}: {device.flops / 1e12:.0f} TFLOP/s bfloat16, {device.bandwidth / 1e12:.1f} TB/s, "
        f"{device.host_link / 1e9:.0f} GB/s to host memory, {device.peer_link / 1e9:.0f} GB/s between GPUs, "
        f"{device.network / 1e9:.0f} GB/s between nodes",
        f"{contents.REACHED}, with {DECODE_STEP * 1e3:g} ms per decoding step besides",
        *_of_mixtures(setting),
        *_of_async(setting),
        f"besides tensors: {PROCESS_BYTES / GIB:.1f} GiB per worker process, "
        f"{VLLM_BYTES / GIB:.0f} GiB for vLLM's activations and graphs",
        "not counted: start-up, checkpoints, evaluation, fragmentation",
    )


def _of_async(setting: Setting) -> Iterator[str]:
    if lag_of(setting.job.values):
        yield (
            f"overlap: {STEPS} steps simulated, {WARM_UP} of them not counted; whole batches train, an engine pauses "
            "for a refit, responses are dealt to the engines in turn; rewards take no time"
        )


def _of_mixtures(setting: Setting) -> Iterator[str]:
    if any(model is not None and model.shape.experts for model in (setting.student, setting.teacher)):
        yield (
            f"of a mixture {contents.EXPERT_FORWARD_SHARE:.0%} of FLOP/s while scoring and "
            f"{contents.EXPERT_TRAIN_SHARE:.0%} while training; all its expert ranks get equally many tokens, and a "
            "decoding step reads the experts that its responses would choose at random"
        )


def _memory_faults(setting: Setting, phases: Sequence[Phase]) -> Iterator[str]:
    """Phases too large for the device, and a KV cache too small for one sequence."""
    capacity = setting.device.offered
    for phase in phases:
        if phase.size > capacity:
            largest = max(phase.device, key=lambda item: item.size)
            yield (
                f"{phase.name} needs {phase.size / GIB:.1f} GiB on each device ({phase.where}), the "
                f"{setting.device.name} offers {capacity / GIB:.1f}; the largest part is {largest.name} with "
                f"{largest.size / GIB:.1f} GiB"
            )
    key = "policy.generation.vllm_cfg.gpu_memory_utilization"
    longest = job_longest(setting.job)
    yield from cache_faults(key, setting.share, longest, setting.cache_bytes // setting.token_bytes)


def job_longest(job: Job) -> int:
    """Tokens of the longest sequence that vLLM generates, in training or in an evaluation of ours."""
    evaluation = job.section.evaluation
    evaluated = evaluation.max_tokens if evaluation is not None and evaluation.benchmarks else 0
    return max(job.longest, job.longest_prompt + evaluated)


def cache_faults(key: str, share: float, longest: int, tokens: int) -> Iterator[str]:
    """Whether a KV cache of ``tokens`` is too small for the longest sequence: vLLM would not start."""
    if tokens < longest:
        yield (
            f"{key}={share:g}: vLLM's KV cache does not hold one sequence of {longest} tokens; raise it, or shorten "
            "the responses"
        )
