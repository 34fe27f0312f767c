"""Seconds of each phase of a step inside NeMo-RL: FLOPs, bytes read, and bytes moved over assumed rates."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from heapq import heapreplace
from statistics import NormalDist

from nemo_uecr.plan.memory import (
    BF16,
    FP32,
    concurrent_responses,
    forward_flops,
    kv_token_bytes,
    most_optimizer_bytes,
    vllm_bytes,
    weight_bytes,
)
from nemo_uecr.plan.records import GIB
from nemo_uecr.plan.setting import Lengths, Setting
from nemo_uecr.plan.shapes import Grid, ModelShape, fullest_stage

__all__ = [
    "reference_seconds",
    "refit_seconds",
    "response_lengths",
    "rollout_seconds",
    "student_seconds",
    "teacher_seconds",
    "train_seconds",
]

#: Seeded deals of a batch's responses to the engines, over which the slowest engine is averaged.
DEALS = 16


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


def refit_seconds(setting: Setting) -> tuple[float, str]:
    """The optimizer and the student leave, vLLM's weights wake, and the student's are sent to them."""
    optimizer, weights = most_optimizer_bytes(setting), weight_bytes(setting.student, setting.grid)
    vllm = vllm_bytes(setting)
    seconds = (optimizer + weights + vllm) / setting.device.host_link + vllm / setting.device.peer_link
    return seconds, f"{_gib(optimizer + weights + vllm)} over the host link, {_gib(vllm)} between GPUs"


def rollout_seconds(setting: Setting) -> tuple[float, str, float]:
    """The slowest engine ends the rollout; the third value is what the average one waits for it."""
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
    return slowest + vllm_bytes(setting) / setting.device.host_link, how, slowest - average


def _engine_seconds(setting: Setting, drawn: Sequence[float], at_once: int) -> float:
    """Every decoding step reads the weights once and the keys and values of the responses at work."""
    device, efficiency, prompt = setting.device, setting.efficiency, setting.lengths.prompt
    tensor = setting.config.rollout.tensor
    ends = [0.0] * at_once  # a response begins in the place that is free first
    for length in drawn:
        heapreplace(ends, ends[0] + length)
    token = kv_token_bytes(setting.student, tensor, BF16)
    read = max(ends) * vllm_bytes(setting) + token * sum(length * (prompt + length / 2) for length in drawn)
    flops = sum(drawn) * forward_flops(setting.student, 2 * prompt + setting.lengths.response) / tensor
    work = max(read / (device.bandwidth * efficiency.decode), flops / (device.flops * efficiency.forward))
    return work + max(ends) * efficiency.decode_step


def teacher_seconds(setting: Setting, teacher: ModelShape, grid: Grid) -> tuple[float, str]:
    """One forward over every prompt and response, and the way onto the GPU unless it stays there."""
    seconds = _forward(setting, teacher, grid)
    how = f"{_tera(_flops(setting, teacher))} on {grid.ranks} GPUs at {setting.efficiency.forward:.0%}"
    if setting.dedicated:
        return seconds, f"{how}; the student's GPUs wait"
    moved = weight_bytes(teacher, grid)  # a frozen model is not copied back
    return seconds + moved / setting.device.host_link, f"{how}; {_gib(moved)} over the host link"


def student_seconds(setting: Setting) -> tuple[float, str]:
    """The student's weights come back; one forward gives both temperatures."""
    weights = weight_bytes(setting.student, setting.grid)
    seconds = _forward(setting, setting.student, setting.grid) + weights / setting.device.host_link
    return seconds, f"{_tera(_flops(setting, setting.student))} at {setting.efficiency.forward:.0%}"


def reference_seconds(setting: Setting) -> tuple[float, str]:
    """The same forward with the initial weights, swapped in and out."""
    swapped = 2 * weight_bytes(setting.student, setting.grid)
    seconds = _forward(setting, setting.student, setting.grid) + swapped / setting.device.host_link
    return seconds, f"{_tera(_flops(setting, setting.student))}; {_gib(swapped)} of weights swapped over the host link"


def train_seconds(setting: Setting) -> tuple[float, str]:
    """Forward, backward twice as dear, the layers once more with checkpointing; then gradients and weights travel."""
    device, efficiency, grid, student = setting.device, setting.efficiency, setting.grid, setting.student
    forward = _flops(setting, student)
    flops = 3 * forward
    if setting.config.student.activation_checkpointing:
        head = 2.0 * student.vocabulary * student.hidden
        flops += forward - head * setting.responses * setting.lengths.whole
    compute = flops / (grid.ranks * device.flops * efficiency.train)
    steps = setting.responses // setting.config.train.minibatch_responses
    sharing = grid.data * grid.context
    travelling = steps * (FP32 + BF16) * fullest_stage(student, grid) * (sharing - 1) / sharing
    link = device.peer_link if setting.config.cluster.nodes == 1 else device.network
    seconds = compute + travelling / link + most_optimizer_bytes(setting) / device.host_link
    bubble = _bubble(setting)
    how = f"{_tera(flops)} at {efficiency.train:.0%}, {steps} optimizer step{'s' if steps > 1 else ''}"
    return seconds + bubble * compute, f"{how}; pipeline bubble {bubble:.0%}" if bubble else how


def _bubble(setting: Setting) -> float:
    """(stages - 1) / micro-batches: the share by which a 1F1B pipeline is longer than its work."""
    if setting.grid.pipeline == 1:
        return 0.0
    train = setting.config.train
    tokens = train.minibatch_responses / setting.grid.data * setting.lengths.whole
    return (setting.grid.pipeline - 1) / max(1.0, tokens / train.tokens_per_microbatch)


def _flops(setting: Setting, shape: ModelShape) -> float:
    """A forward over every prompt and response of a step."""
    return forward_flops(shape, setting.lengths.whole) * setting.responses * setting.lengths.whole


def _forward(setting: Setting, shape: ModelShape, grid: Grid) -> float:
    return _flops(setting, shape) / (grid.ranks * setting.device.flops * setting.efficiency.forward)


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f} GiB"


def _tera(flops: float) -> str:
    return f"{flops / 1e15:,.1f} PFLOP"
