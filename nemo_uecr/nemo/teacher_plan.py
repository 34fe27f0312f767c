"""The teacher's differences from the student's NeMo-RL configuration."""

from __future__ import annotations

from typing import Any

from nemo_uecr.config.methods import needs_of
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.nemo.teachers import TeacherPlan

#: The student's settings that a frozen scorer must not inherit.
REMOVED = ("pretrained_checkpoint", "quant_cfg", "router_replay")


def teacher_plan(config: NemoConfig) -> TeacherPlan | None:
    """How the teacher is built; None when the method reads none, so that none is ever loaded."""
    if not needs_of(config.method.name).needs_teacher:
        return None
    teacher = config.teacher
    parallel = teacher.parallel
    changes: dict[str, Any] = {
        "model_name": teacher.model_name,
        "tokenizer.name": teacher.model_name,
        "megatron_cfg.tensor_model_parallel_size": parallel.tensor,
        "megatron_cfg.pipeline_model_parallel_size": parallel.pipeline,
        "megatron_cfg.context_parallel_size": parallel.context,
        "megatron_cfg.sequence_parallel": parallel.sequence,
        "megatron_cfg.activation_checkpointing": False,
        "megatron_cfg.fp8_cfg.enabled": teacher.fp8,
        # Transformer Engine keeps an FP8 copy of each weight, which moving the model does not reach.
        "megatron_cfg.fp8_cfg.force_clear_fp8_caches": teacher.fp8,
        # Whatever the student samples at, the teacher is the raw model.
        "generation.temperature": 1.0,
        "generation.top_p": 1.0,
        "generation.top_k": None,
        "uecr.temperature": 1.0,
        "uecr.filters": "paper",
    }
    if teacher.megatron_checkpoint is not None:
        changes["pretrained_checkpoint"] = {"path": teacher.megatron_checkpoint, "format": "megatron_bridge"}
    return TeacherPlan(
        changes=changes,
        removed=REMOVED,
        timeout_s=config.scoring.timeout_s,
        dedicated=teacher.dedicated_gpus > 0,
        offload_limit_mebi=teacher.offload_limit_mebi,
    )
