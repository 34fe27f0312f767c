"""A step's batch on disk in the project's one format, for replay and the credit map.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_uecr.data.batch_file import save_batch
from nemo_uecr.nemo_adapter.context import StepContext


def save_step(context: StepContext, data: Any) -> None:
    """Write the step's batch when it is due.

    Args:
        context: the run and the step.
        data: NeMo-RL's training columns.
    """
    spec, step = context.spec, context.completed_steps + 1
    if spec.save_every == 0 or step % spec.save_every:
        return
    batch, scores = context.outcome.batch, context.scores
    tensors = {
        "task_reward": batch.task_reward_B,
        "group": batch.group_B,
        "mask": batch.mask_BT,
        "old_logp": batch.old_logp_BT,
        "old_logp_rollout": scores.student.logp[0],
        "token_ids": scores.token_ids_BS,
    }
    optional = {
        "teacher_logp": batch.teacher_logp_BT,
        "teacher_entropy": batch.teacher_entropy_BT,
        "ref_logp": data["reference_policy_logprobs"] if spec.kl_coef > 0 else None,
        "segments": batch.segments_BT,
    }
    tensors |= {name: value for name, value in optional.items() if value is not None}
    folder = Path(spec.folder) / "batches"
    folder.mkdir(parents=True, exist_ok=True)
    settings = vars(context.outcome.settings)
    save_batch(folder / f"step-{step:06d}.safetensors", tensors, method=spec.method_name, settings=settings, step=step)
