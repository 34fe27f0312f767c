"""The plan of a run of the local back end: one process, one device, everything resident.

Shape legend: H = hidden size, F = feed-forward size.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_uecr.config.schema import teacher_of
from nemo_uecr.plan.faults import mismatches_of
from nemo_uecr.plan.nemo import response_lengths
from nemo_uecr.plan.records import DECODE_SHARE, FORWARD_SHARE, GIB, TRAIN_SHARE, Item, Phase, Plan, RankLine
from nemo_uecr.plan.shapes import BF16, FP32, ModelShape, forward_flops, kv_token_bytes, layer_parameters, parameters

if TYPE_CHECKING:
    from nemo_uecr.config.schema import Config
    from nemo_uecr.plan.records import Device, Lengths

__all__ = ["Sizes", "kept_bytes", "local_plan", "logits_bytes"]

Sizes = Callable[[str, str], ModelShape]
"""From a model's name and its role to its sizes."""

CHUNK_BYTES = 134_217_728
"""float32 logits that the local back end reduces at once; a test holds it equal to the back end's own."""

LAYER_SECONDS = {"CPU": 4e-4, "GPU": 1e-3}
"""Python and kernel launches of one layer in one decoding step of transformers, whatever the model's size."""


def kept_bytes(shape: ModelShape, tokens: int, *, bfloat16: bool) -> int:
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


def logits_bytes(shape: ModelShape, tokens: int, *, bfloat16: bool) -> int:
    """Logits in training, a chunk at a time: logits and gradient, with float32 rows beside bfloat16."""
    logits = min(CHUNK_BYTES, FP32 * tokens * shape.vocabulary)
    return logits + logits // 2 if bfloat16 else 2 * logits


@dataclass(frozen=True)
class _Run:
    """The sizes that the phases share."""

    config: Config
    student: ModelShape
    teacher: ModelShape | None
    device: Device
    lengths: Lengths

    @property
    def responses(self) -> int:
        return self.config.rollout.prompts_per_step * self.config.rollout.responses_per_prompt

    @property
    def longest(self) -> int:
        return self.config.data.max_prompt_tokens + self.config.rollout.max_response_tokens

    @property
    def tokens(self) -> int:
        """Tokens of the largest micro-batch."""
        return min(self.config.train.microbatch_responses, self.responses) * self.longest

    @property
    def reference(self) -> bool:
        return self.config.loss.reference_kl > 0 or self.config.method.entry.needs_initial

    @property
    def kind(self) -> str:
        return "CPU" if self.device.name == "CPU" else "GPU"

    @property
    def threads(self) -> int:
        return self.config.threads or 1 if self.device.memory is None else 1

    @property
    def flops(self) -> float:
        """FLOP/s of the device."""
        return self.device.flops * self.threads

    def forward(self, shape: ModelShape) -> float:
        """FLOPs of a forward over every prompt and response of a step."""
        return self.responses * self.lengths.whole * forward_flops(shape, self.lengths.whole)


def local_plan(config: Config, device: Device, lengths: Lengths, *, sizes: Sizes) -> Plan:
    """Plan a validated configuration.

    Args:
        config: the run.
        device: limits of the device; its memory is None where it is not known.
        lengths: mean tokens for the times.
        sizes: from a model's name and its role to its sizes.

    Raises:
        DataError: the sizes of a model are not known.
    """
    name, title = teacher_of(config), f"{config.method.name}: student {config.student.model_name}"
    student, teacher = sizes(config.student.model_name, "student"), None if name is None else sizes(name, "teacher")
    run = _Run(config, student, teacher, device, lengths)
    phases = [_rollout(run), _scoring(run, student, "score student")]
    phases += [] if teacher is None else [_scoring(run, teacher, "score teacher")]
    phases += [_scoring(run, student, "score reference")] if run.reference else []
    phases += [_update(run)]
    mismatches, count, train = mismatches_of(config, student, teacher), parameters(student), config.train
    steps = run.responses // train.minibatch_responses
    memory = "" if device.memory is None else f", {device.memory / GIB:.0f} GiB that can be allocated"
    threads = f", {run.threads} thread(s)" if run.kind == "CPU" else ""
    return Plan(
        title=f"{title}{'' if name is None else f', teacher {name}'}, local back end",
        hardware=f"one {device.name}{threads}{memory}",
        capacity=device.memory,
        layout=(RankLine(0, 0, f"whole, {run.responses} responses", "whole" if teacher else "-", "transformers"),),
        phases=tuple(phases),
        host=(Item("batch", run.responses * run.longest * 40, "token ids and 8 float32 columns, 40 bytes a token"),),
        checkpoint=Item("checkpoint", 3 * FP32 * count, f"{count:,} parameters, weights and AdamW's moments, 12 bytes"),
        facts=(
            f"{config.rollout.prompts_per_step} prompts x {config.rollout.responses_per_prompt} responses = "
            f"{run.responses} a step",
            f"{steps} optimizer step{'s' if steps > 1 else ''} of {train.minibatch_responses} responses in "
            f"micro-batches of {train.microbatch_responses}",
        ),
        assumptions=(
            f"{lengths.said(config.rollout.max_response_tokens)}; memory takes the longest, {run.longest}",
            f"{device.name}: {run.flops / 1e9:,.0f} GFLOP/s, {device.bandwidth / 1e9:,.0f} GB/s; reached: "
            f"{DECODE_SHARE:.0%} of bandwidth while generating, {FORWARD_SHARE:.0%} of FLOP/s while scoring, "
            f"{TRAIN_SHARE:.0%} while training",
            f"{LAYER_SECONDS[run.kind] * 1e3:.1f} ms of launches a layer and decoding step",
            "not counted: verification, evaluation, checkpoints, Python and torch themselves (about 1 GiB)",
        ),
        faults=(*mismatches, *_memory_faults(device, phases)),
        mismatches=mismatches,
    )


def _resident(run: _Run) -> list[Item]:
    """What stays on the device from the first update on."""
    count = parameters(run.student)
    items = [
        Item("student weights", FP32 * count, f"{count:,} parameters, float32"),
        Item("gradients", FP32 * count, "float32"),
        Item("optimizer", 2 * FP32 * count, "AdamW's two moments, float32"),
    ]
    if run.reference:
        items.append(Item("reference weights", FP32 * count, "the initial student, float32"))
    if run.teacher is not None:
        dtype, held = run.config.teacher.dtype, parameters(run.teacher)
        width = BF16 if dtype == "bfloat16" else FP32
        items.append(Item("teacher weights", width * held, f"{held:,} parameters, {dtype}"))
    return items


def _rollout(run: _Run) -> Phase:
    shape, lengths, at_once = run.student, run.lengths, min(run.config.rollout.microbatch_responses, run.responses)
    token = kv_token_bytes(shape, 1, BF16 if run.config.student.dtype == "bfloat16" else FP32)
    drawn = 4 * FP32 * at_once * shape.vocabulary
    cache = f"{at_once} responses of {run.longest} tokens, {token} bytes each"
    items = (
        *_resident(run),
        Item("KV cache", at_once * run.longest * token, cache),
        Item("logits being drawn from", drawn, "four float32 copies of one token's logits for each response"),
    )
    ends = response_lengths(lengths, run.config.rollout.max_response_tokens, run.responses)
    random.Random(0).shuffle(ends)
    waves = [max(ends[first : first + at_once]) for first in range(0, run.responses, at_once)]
    read = sum(
        length * (FP32 * parameters(shape) + at_once * (lengths.prompt + length / 2) * token) for length in waves
    )
    flops = at_once * sum(waves) * forward_flops(shape, lengths.whole)
    launches = sum(waves) * shape.layers * LAYER_SECONDS[run.kind]
    work = max(read / (run.device.bandwidth * DECODE_SHARE), flops / (run.flops * FORWARD_SHARE))
    mean = sum(waves) / len(waves)
    how = f"{len(waves)} x {mean:.0f} decoding steps: {work:.1f} s of work, {launches:.1f} s of launches"
    return Phase("rollout", "the device", items, work + launches, how)


def _scoring(run: _Run, shape: ModelShape, name: str) -> Phase:
    tokens, flops = run.tokens, run.forward(shape)
    widest = FP32 * tokens * (3 * shape.hidden + max(2 * shape.query + 2 * shape.key_value, 3 * shape.feed_forward))
    logits = 2 * min(CHUNK_BYTES, FP32 * tokens * shape.vocabulary)
    items = (
        *_resident(run),
        Item("activations", widest, f"one layer, {tokens} tokens, no gradient"),
        Item("logits", logits, "one chunk and its working copy, float32"),
    )
    return Phase(name, "the device", items, flops / (run.flops * FORWARD_SHARE), _tera(flops))


def _update(run: _Run) -> Phase:
    shape, low, flops = run.student, run.config.student.dtype == "bfloat16", 3 * run.forward(run.student)
    kept = shape.layers * kept_bytes(shape, run.tokens, bfloat16=low)
    items = (
        *_resident(run),
        Item("activations", kept, f"{shape.layers} layers, {run.tokens} tokens, all of them kept"),
        Item("logits", logits_bytes(shape, run.tokens, bfloat16=low), "one chunk and its gradient"),
    )
    return Phase("update", "the device", items, flops / (run.flops * TRAIN_SHARE), _tera(flops))


def _tera(flops: float) -> str:
    return f"{flops / 1e12:,.2f} TFLOP"


def _memory_faults(device: Device, phases: list[Phase]) -> list[str]:
    fullest = max(phases, key=lambda phase: phase.size)
    if device.memory is None or fullest.size <= device.memory:
        return []
    lever = "rollout" if fullest.name == "rollout" else "train"
    return [
        f"{fullest.name} needs {fullest.size / GIB:.1f} GiB, the {device.name} offers {device.memory / GIB:.1f}; lower "
        f"{lever}.microbatch_responses or take smaller models"
    ]
