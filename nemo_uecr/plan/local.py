"""The plan of a run of the local back end: one process, one device, everything resident."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from nemo_uecr.config.schema import teacher_of
from nemo_uecr.plan import memory
from nemo_uecr.plan.faults import mismatches_of
from nemo_uecr.plan.memory import BF16, FP32
from nemo_uecr.plan.records import GIB, Item, Phase, Plan, RankLine
from nemo_uecr.plan.seconds import response_lengths
from nemo_uecr.plan.setting import Device, Efficiency
from nemo_uecr.plan.shapes import ModelShape, parameters

if TYPE_CHECKING:
    from collections.abc import Callable

    from nemo_uecr.config.schema import Config
    from nemo_uecr.plan.setting import Lengths

    Sizes = Callable[[str, str], ModelShape]

__all__ = ["local_plan"]

CHUNK_BYTES = 134_217_728
"""float32 logits that the local back end reduces at once; a test holds it equal to the back end's own."""

LAYER_SECONDS = {"CPU": 4e-4, "GPU": 1e-3}
"""Python and kernel launches of one layer in one decoding step of transformers, whatever the model's size."""


class _Run:
    """The sizes that the phases share."""

    def __init__(self, config: Config, sizes: Sizes, device: Device, efficiency: Efficiency, lengths: Lengths) -> None:
        self.config, self.device, self.efficiency, self.lengths = config, device, efficiency, lengths
        self.student = sizes(config.student.model_name, "student")
        teacher = teacher_of(config)
        self.teacher = None if teacher is None else sizes(teacher, "teacher")
        self.reference = config.loss.reference_kl > 0 or config.method.entry.needs_initial
        self.longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
        self.responses = config.rollout.prompts_per_step * config.rollout.responses_per_prompt
        self.kind = "CPU" if device.name == "CPU" else "GPU"
        self.threads = config.threads or 1 if device.memory is None else 1

    @property
    def flops(self) -> float:
        """FLOP/s of the device."""
        return self.device.flops * self.threads

    def resident(self) -> tuple[Item, ...]:
        """What stays on the device from the first update on."""
        count = parameters(self.student)
        items = [
            Item("student weights", FP32 * count, f"{count:,} parameters, float32"),
            Item("gradients", FP32 * count, "float32"),
            Item("optimizer", 2 * FP32 * count, "AdamW's two moments, float32"),
        ]
        if self.reference:
            items.append(Item("reference weights", FP32 * count, "the initial student, float32"))
        if self.teacher is not None:
            width = BF16 if self.config.teacher.dtype == "bfloat16" else FP32
            held = parameters(self.teacher)
            items.append(Item("teacher weights", width * held, f"{held:,} parameters, {self.config.teacher.dtype}"))
        return tuple(items)


def local_plan(config: Config, device: Device, efficiency: Efficiency, lengths: Lengths, *, sizes: Sizes) -> Plan:
    """Plan a validated configuration.

    Args:
        config: the run.
        device: limits of the device; its memory is None where it is not known.
        efficiency: assumed shares of these limits.
        lengths: mean tokens for the times.
        sizes: from a model's name and its role to its sizes.

    Raises:
        DataError: the sizes of a model are not known.
    """
    run = _Run(config, sizes, device, efficiency, lengths)
    phases, count = _phases(run), parameters(run.student)
    mismatches = mismatches_of(config, run.student, run.teacher)
    return Plan(
        title=_title(run),
        hardware=_hardware(run),
        capacity=device.memory,
        layout=(RankLine(0, 0, f"whole, {run.responses} responses", "whole" if run.teacher else "-", "transformers"),),
        phases=phases,
        host=(Item("batch", run.responses * run.longest * 40, "token ids and 8 float32 columns, 40 bytes a token"),),
        checkpoint=Item("checkpoint", 3 * FP32 * count, f"{count:,} parameters, weights and AdamW's moments, 12 bytes"),
        facts=_facts(run),
        assumptions=_assumptions(run),
        faults=(*mismatches, *_memory_faults(run, phases)),
        mismatches=mismatches,
    )


def _phases(run: _Run) -> tuple[Phase, ...]:
    phases = [_rollout(run), _scoring(run, run.student, "score student")]
    if run.teacher is not None:
        phases.append(_scoring(run, run.teacher, "score teacher"))
    if run.reference:
        phases.append(_scoring(run, run.student, "score reference"))
    phases.append(_update(run))
    return tuple(phases)


def _rollout(run: _Run) -> Phase:
    shape, lengths, at_once = run.student, run.lengths, min(run.config.rollout.microbatch_responses, run.responses)
    width = BF16 if run.config.student.dtype == "bfloat16" else FP32
    token = memory.kv_token_bytes(shape, 1, width)
    drawn = 4 * FP32 * at_once * shape.vocabulary
    items = (
        *run.resident(),
        Item(
            "KV cache",
            at_once * run.longest * token,
            f"{at_once} responses of {run.longest} tokens, {token} bytes each",
        ),
        Item("logits being drawn from", drawn, "four float32 copies of one token's logits for each response"),
    )
    ends = response_lengths(lengths, run.config.rollout.max_response_tokens, run.responses)
    random.Random(0).shuffle(ends)
    waves = [max(ends[first : first + at_once]) for first in range(0, run.responses, at_once)]
    read = sum(
        length * (FP32 * parameters(shape) + at_once * (lengths.prompt + length / 2) * token) for length in waves
    )
    flops = at_once * sum(waves) * memory.forward_flops(shape, lengths.whole)
    launches = sum(waves) * shape.layers * LAYER_SECONDS[run.kind]
    work = max(read / (run.device.bandwidth * run.efficiency.decode), flops / (run.flops * run.efficiency.forward))
    mean = sum(waves) / len(waves)
    how = f"{len(waves)} x {mean:.0f} decoding steps: {work:.1f} s of work, {launches:.1f} s of launches"
    return Phase("rollout", "the device", items, work + launches, how)


def _scoring(run: _Run, shape: ModelShape, name: str) -> Phase:
    tokens = min(run.config.train.microbatch_responses, run.responses) * run.longest
    widest = FP32 * tokens * (3 * shape.hidden + max(2 * shape.query + 2 * shape.key_value, 3 * shape.feed_forward))
    items = (
        *run.resident(),
        Item("activations", widest, f"one layer, {tokens} tokens, no gradient"),
        Item(
            "logits", 2 * min(CHUNK_BYTES, FP32 * tokens * shape.vocabulary), "one chunk and its working copy, float32"
        ),
    )
    flops = _forward(run, shape)
    return Phase(name, "the device", items, flops / (run.flops * run.efficiency.forward), _work(flops))


def _update(run: _Run) -> Phase:
    shape, low = run.student, run.config.student.dtype == "bfloat16"
    tokens = min(run.config.train.microbatch_responses, run.responses) * run.longest
    logits = memory.local_logits_bytes(shape, tokens, CHUNK_BYTES, bfloat16=low)
    each = memory.local_kept_bytes(shape, tokens, bfloat16=low)
    items = (
        *run.resident(),
        Item("activations", shape.layers * each, f"{shape.layers} layers, {tokens} tokens, all of them kept"),
        Item("logits", logits, "one chunk and its gradient"),
    )
    flops = 3 * _forward(run, shape)
    return Phase("update", "the device", items, flops / (run.flops * run.efficiency.train), _work(flops))


def _forward(run: _Run, shape: ModelShape) -> float:
    """FLOPs of a forward over every prompt and response of a step."""
    return run.responses * run.lengths.whole * memory.forward_flops(shape, run.lengths.whole)


def _work(flops: float) -> str:
    return f"{flops / 1e12:,.2f} TFLOP"


def _title(run: _Run) -> str:
    config = run.config
    teacher = f", teacher {config.teacher.model_name}" if run.teacher is not None else ""
    return f"{config.method.name}: student {config.student.model_name}{teacher}, local back end"


def _hardware(run: _Run) -> str:
    memory = "" if run.device.memory is None else f", {run.device.memory / GIB:.0f} GiB that can be allocated"
    threads = f", {run.threads} thread(s)" if run.kind == "CPU" else ""
    return f"one {run.device.name}{threads}{memory}"


def _facts(run: _Run) -> tuple[str, ...]:
    rollout, train = run.config.rollout, run.config.train
    steps = run.responses // train.minibatch_responses
    return (
        f"{rollout.prompts_per_step} prompts x {rollout.responses_per_prompt} responses = {run.responses} a step",
        f"{steps} optimizer step{'s' if steps > 1 else ''} of {train.minibatch_responses} responses in "
        f"micro-batches of {train.microbatch_responses}",
    )


def _assumptions(run: _Run) -> tuple[str, ...]:
    device, efficiency, lengths = run.device, run.efficiency, run.lengths
    share = f"{efficiency.decode:.0%} of bandwidth while generating, {efficiency.forward:.0%} of FLOP/s while scoring"
    return (
        f"{lengths.said(run.config.rollout.max_response_tokens)}; memory takes the longest, {run.longest}",
        f"{device.name}: {run.flops / 1e9:,.0f} GFLOP/s, {device.bandwidth / 1e9:,.0f} GB/s; reached: {share}, "
        f"{efficiency.train:.0%} while training",
        f"{LAYER_SECONDS[run.kind] * 1e3:.1f} ms of launches a layer and decoding step",
        "not counted: verification, evaluation, checkpoints, Python and torch themselves (about 1 GiB)",
    )


def _memory_faults(run: _Run, phases: tuple[Phase, ...]) -> tuple[str, ...]:
    fullest = max(phases, key=lambda phase: phase.size)
    if run.device.memory is None or fullest.size <= run.device.memory:
        return ()
    lever = "rollout" if fullest.name == "rollout" else "train"
    return (
        f"{fullest.name} needs {fullest.size / GIB:.1f} GiB, the {run.device.name} offers "
        f"{run.device.memory / GIB:.1f}; lower {lever}.microbatch_responses or take smaller models",
    )
