"""Why a run inside NeMo-RL cannot start or would end in the middle: one sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_uecr.config.nemo_checks import packed, student_gpus, teacher_gpus
from nemo_uecr.plan.mismatches import other_columns, too_long
from nemo_uecr.plan.nemo_memory import concurrent_responses
from nemo_uecr.plan.records import GIB, Phase
from nemo_uecr.plan.setting import Setting
from nemo_uecr.plan.shapes import ModelShape
from nemo_uecr.plan.shards import grid_of, rollout_fault, shape_faults

if TYPE_CHECKING:
    from nemo_uecr.config.nemo_schema import NemoConfig

__all__ = ["cut_faults", "memory_faults", "mismatches_of", "teacher_alone_faults"]


def cut_faults(config: NemoConfig, student: ModelShape, teacher: ModelShape | None) -> list[str]:
    """What of the models their layout cannot cut, one sentence each."""
    faults = shape_faults(student, grid_of(config.student.parallel, student_gpus(config)), role="student")
    if teacher is not None:
        faults += shape_faults(teacher, grid_of(config.teacher.parallel, teacher_gpus(config)), role="teacher")
    rollout = rollout_fault(student, config.rollout.tensor)
    if rollout is not None:
        faults.append(rollout)
    return faults


def mismatches_of(config: NemoConfig, student: ModelShape, teacher: ModelShape | None) -> tuple[str, ...]:
    """Sequence lengths and vocabularies."""
    prompt, response, stated = config.data.max_prompt_tokens, config.rollout.max_response_tokens, config.student
    faults = too_long("student", student, prompt, response, "rollout.max_response_tokens")
    if config.evaluation.benchmarks:
        faults += too_long("student", student, prompt, config.evaluation.max_tokens, "evaluation.max_tokens")
    if student.vocabulary != stated.vocabulary:
        faults.append(
            f"student.vocabulary={stated.vocabulary}, but the student has {student.vocabulary} output columns; take "
            f"student.vocabulary={student.vocabulary}"
        )
    if teacher is not None:
        faults += too_long("teacher", teacher, prompt, response, "rollout.max_response_tokens")
        faults += other_columns(student, teacher)
    return tuple(faults)


def teacher_alone_faults(config: NemoConfig, teacher: ModelShape, longest: int) -> list[str]:
    """Why a teacher on all GPUs of the cluster cannot score sequences of up to that many tokens."""
    gpus = config.cluster.nodes * config.cluster.gpus_per_node
    faults = shape_faults(teacher, grid_of(config.teacher.parallel, gpus), role="teacher")
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
