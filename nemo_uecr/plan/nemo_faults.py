"""Why a run inside NeMo-RL cannot start or would end in the middle: one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_uecr.plan.mismatches import other_columns, too_long
from nemo_uecr.plan.nemo_memory import concurrent_responses
from nemo_uecr.plan.records import GIB, Phase
from nemo_uecr.plan.setting import Setting

__all__ = ["memory_faults", "mismatches_of"]


def mismatches_of(setting: Setting) -> tuple[str, ...]:
    """Sequence lengths and vocabularies."""
    prompt, response = setting.config.data.max_prompt_tokens, setting.config.rollout.max_response_tokens
    student, teacher, stated = setting.student, setting.teacher, setting.config.student.vocabulary
    faults = too_long("student", student, prompt, response)
    if student.vocabulary != stated:
        faults.append(
            f"student.vocabulary={stated}, but the student has {student.vocabulary} output columns; take "
            f"student.vocabulary={student.vocabulary}"
        )
    if teacher is not None:
        faults += [*too_long("teacher", teacher, prompt, response), *other_columns(student, teacher)]
    return tuple(faults)


def memory_faults(setting: Setting, phases: Sequence[Phase]) -> list[str]:
    """Phases that need more than a device offers, and a KV cache too small for one sequence."""
    faults = []
    capacity = setting.device.memory or 0
    for phase in phases:
        if phase.size > capacity:
            largest = max(phase.device, key=lambda item: item.size)
            faults.append(
                f"{phase.name} needs {phase.size / GIB:.1f} GiB on each device ({phase.where}), the "
                f"{setting.device.name} offers {capacity / GIB:.0f}; the largest part is {largest.name} with "
                f"{largest.size / GIB:.1f} GiB"
            )
    if concurrent_responses(setting, setting.longest) == 0:
        faults.append(
            f"rollout: with rollout.gpu_memory={setting.config.rollout.gpu_memory} vLLM's KV cache does not hold one "
            f"sequence of {setting.longest} tokens"
        )
    return faults
