"""Why a run inside NeMo-RL cannot start or would end in the middle: one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from nemo_uecr.plan.nemo_memory import concurrent_responses
from nemo_uecr.plan.records import GIB, Phase
from nemo_uecr.plan.setting import Setting

__all__ = ["faults_of"]


def faults_of(setting: Setting, phases: Sequence[Phase]) -> tuple[str, ...]:
    """Memory, sequence lengths and vocabularies."""
    return (*_memory_faults(setting, phases), *_length_faults(setting), *_vocabulary_faults(setting))


def _memory_faults(setting: Setting, phases: Sequence[Phase]) -> list[str]:
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


def _length_faults(setting: Setting) -> list[str]:
    faults = []
    for role, shape in (("student", setting.student), ("teacher", setting.teacher)):
        if shape is not None and 0 < shape.positions < setting.longest:
            faults.append(
                f"data.max_prompt_tokens + rollout.max_response_tokens = {setting.longest}, but the {role} was made "
                f"for {shape.positions} positions"
            )
    return faults


def _vocabulary_faults(setting: Setting) -> list[str]:
    expected = setting.config.student.vocabulary
    return [
        f"student.vocabulary={expected}, but the {role} has {shape.vocabulary} output columns"
        for role, shape in (("student", setting.student), ("teacher", setting.teacher))
        if shape is not None and shape.vocabulary != expected
    ]
