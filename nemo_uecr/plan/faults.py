"""Why a run cannot be laid out, does not fit, or cannot take its models: one sentence each, with the remedy.

`plan` prints these, the doctor and the NeMo-RL back end's start refuse by them. What the configuration alone tells is
checked in `config.nemo_checks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_uecr.config.nemo_checks import packed, student_gpus, teacher_gpus
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.plan.memory import concurrent_responses
from nemo_uecr.plan.records import GIB, Phase
from nemo_uecr.plan.setting import Setting
from nemo_uecr.plan.shapes import Grid, ModelShape, grid_of

if TYPE_CHECKING:
    from nemo_uecr.config.schema import Config

__all__ = ["layout_faults", "memory_faults", "mismatches_of", "rollout_fault", "teacher_alone_faults", "too_long"]

VLLM_PADDING = 64
"""vLLM pads a vocabulary to a multiple of it before it cuts it."""

MOST_RANKS = 1024


def layout_faults(config: NemoConfig, student: ModelShape, teacher: ModelShape | None) -> list[str]:
    """What Megatron and vLLM cannot cut into equal parts."""
    faults = megatron_faults(student, grid_of(config.student.parallel, student_gpus(config)), role="student")
    if teacher is not None:
        faults += megatron_faults(teacher, grid_of(config.teacher.parallel, teacher_gpus(config)), role="teacher")
    rollout = rollout_fault(student, config.rollout.tensor)
    if rollout is not None:
        faults.append(rollout)
    return faults


def megatron_faults(shape: ModelShape, grid: Grid, *, role: str) -> list[str]:
    """What of a model Megatron cannot cut into equal parts."""
    cut = {
        "query heads": shape.heads,
        "key and value heads": shape.kv_heads,
        "feed-forward columns": shape.feed_forward,
    }
    faults = []
    if any(count % grid.tensor for count in cut.values()):
        common = math.gcd(*cut.values())
        sizes = ", ".join(f"{count} {what}" for what, count in cut.items())
        faults.append(
            f"{role}.parallel.tensor: got {grid.tensor}, expected a divisor of {common}; the model has {sizes}"
        )
    if shape.layers % grid.pipeline:
        faults.append(
            f"{role}.parallel.pipeline: got {grid.pipeline}, expected a divisor of the model's {shape.layers} layers"
        )
    return faults


def rollout_fault(shape: ModelShape, tensor: int) -> str | None:
    """Why vLLM cannot cut a model over that many GPUs; None where it can.

    Its rule: the ranks divide query heads, feed-forward columns and the padded vocabulary; and they divide the key and
    value heads, or, where there are more ranks than those, the heads divide the ranks.
    """
    padded = -(-shape.vocabulary // VLLM_PADDING) * VLLM_PADDING
    cut = {"query heads": shape.heads, "feed-forward columns": shape.feed_forward, "padded output columns": padded}
    common, kv_heads = math.gcd(*cut.values()), shape.kv_heads
    fits = [size for size in range(1, min(common, MOST_RANKS) + 1) if common % size == 0 and _shares(kv_heads, size)]
    if tensor in fits:
        return None
    sizes = ", ".join(f"{count} {what}" for what, count in cut.items())
    return (
        f"rollout.tensor: got {tensor}, expected one of {', '.join(map(str, fits))}; the student has {sizes} and "
        f"{kv_heads} key and value heads"
    )


def _shares(kv_heads: int, ranks: int) -> bool:
    return kv_heads % ranks == 0 if kv_heads >= ranks else ranks % kv_heads == 0


def mismatches_of(config: Config | NemoConfig, student: ModelShape, teacher: ModelShape | None) -> tuple[str, ...]:
    """What no layout cures: sequences longer than a model's positions, and vocabularies that differ."""
    key, evaluation = "rollout.max_response_tokens", config.evaluation
    faults = too_long(config, "student", student, key, config.rollout.max_response_tokens)
    if isinstance(config, NemoConfig):
        if evaluation.benchmarks:
            faults += too_long(config, "student", student, "evaluation.max_tokens", evaluation.max_tokens)
        if student.vocabulary != config.student.vocabulary:
            faults.append(
                f"student.vocabulary={config.student.vocabulary}, but the student has {student.vocabulary} output "
                f"columns; take student.vocabulary={student.vocabulary}"
            )
    if teacher is not None:
        faults += too_long(config, "teacher", teacher, key, config.rollout.max_response_tokens)
        if teacher.vocabulary != student.vocabulary:
            faults.append(
                f"the student has {student.vocabulary} output columns, the teacher {teacher.vocabulary}; take a "
                f"teacher whose config.json has vocab_size {student.vocabulary}"
            )
    return tuple(faults)


def too_long(config: Config | NemoConfig, role: str, shape: ModelShape, key: str, response: int) -> list[str]:
    """Whether the longest prompt with a response of `response` tokens, as `key` allows it, exceeds the positions."""
    prompt = config.data.max_prompt_tokens
    if not 0 < shape.positions < prompt + response:
        return []
    left = shape.positions - prompt
    remedy = f"{key}={left}" if left > 0 else f"data.max_prompt_tokens below {shape.positions}"
    return [
        f"data.max_prompt_tokens + {key} = {prompt + response}, but the {role} was made for "
        f"{shape.positions} positions; take {remedy}, or a {role} that was made for more"
    ]


def teacher_alone_faults(config: NemoConfig, teacher: ModelShape, longest: int) -> list[str]:
    """Why a teacher on all GPUs of the cluster cannot score sequences of up to that many tokens."""
    gpus = config.cluster.nodes * config.cluster.gpus_per_node
    faults = megatron_faults(teacher, grid_of(config.teacher.parallel, gpus), role="teacher")
    if teacher.vocabulary != config.student.vocabulary:
        faults.append(
            f"student.vocabulary={config.student.vocabulary}, but the teacher has {teacher.vocabulary} output columns; "
            "take a teacher with as many as the student that wrote the batch"
        )
    if 0 < teacher.positions < longest:
        faults.append(
            f"the longest sequence of the batch has {longest} tokens, but the teacher was made for "
            f"{teacher.positions} positions; take a teacher that was made for more"
        )
    needed = packed(config, longest)
    if config.scoring.tokens_per_microbatch < needed:
        faults.append(
            f"scoring.tokens_per_microbatch: got {config.scoring.tokens_per_microbatch}, expected at least {needed}, "
            f"the batch's longest sequence of {longest} tokens as the parallel layouts pad it"
        )
    return faults


def memory_faults(setting: Setting, phases: Sequence[Phase]) -> list[str]:
    """Phases that need more than a device offers, and a KV cache too small for one sequence."""
    faults = []
    for phase in phases:
        if phase.size > setting.capacity:
            largest = max(phase.device, key=lambda item: item.size)
            faults.append(
                f"{phase.name} needs {phase.size / GIB:.1f} GiB on each device ({phase.where}), the "
                f"{setting.device.name} offers {setting.capacity / GIB:.0f}; the largest part is {largest.name} with "
                f"{largest.size / GIB:.1f} GiB"
            )
    if concurrent_responses(setting, setting.longest) == 0:
        faults.append(
            f"rollout: with rollout.gpu_memory={setting.config.rollout.gpu_memory} vLLM's KV cache does not hold one "
            f"sequence of {setting.longest} tokens"
        )
    return faults
