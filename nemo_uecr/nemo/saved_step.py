"""A step's batch on disk in the project's one format, for replay and the credit map.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_uecr.data.batch_file import advantages_of, arithmetic, save_batch, tensors_of
from nemo_uecr.nemo.context import StepContext


def save_step(context: StepContext, data: Any) -> None:
    """Write the step's batch when it is due.

    Args:
        context: the run and the step.
        data: NeMo-RL's training columns.
    """
    spec, step = context.spec, context.completed_steps + 1
    if spec.save_every == 0 or step % spec.save_every:
        return
    scores = context.scores
    tensors = tensors_of(context.outcome.batch)
    tensors |= advantages_of(context.outcome.advantages)
    tensors |= {"old_logp_rollout": scores.student.logp[0], "token_ids": scores.token_ids_BS}
    if spec.kl_coef > 0:
        tensors["ref_logp"] = data["reference_policy_logprobs"]
    folder = Path(spec.folder) / "batches"
    folder.mkdir(parents=True, exist_ok=True)
    save_batch(
        folder / f"step-{step:06d}.safetensors",
        tensors,
        method=spec.method_name,
        settings=vars(context.outcome.settings),
        step=step,
        arithmetic=arithmetic(),
    )
