"""The audit of a step: what was drawn, generated, rewarded and trained must add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from nemo_uecr.nemo.context import StepContext
from nemo_uecr.nemo.errors import BatchFactsError
from nemo_uecr.nemo.loss import PREFIX

GLOBAL_STEPS = "count/global_steps"


def check_facts(context: StepContext, data: Any, result: Any) -> None:
    """Compare the step's counts with the configuration and with what the workers say they trained.

    Args:
        context: the run and the step.
        data: NeMo-RL's training columns.
        result: what the policy's training returned.

    Raises:
        BatchFactsError: naming the count that is off.
    """
    for name, (found, expected) in _facts(context, data, result).items():
        if found != expected:
            raise BatchFactsError(
                f"step {context.completed_steps + 1}: {name} is {found}; expected {expected}. Responses or tokens were "
                "lost, duplicated or masked between rollout and update"
            )


class AuditedLogger:
    """NeMo-RL's logger, which hears from its loop every step: the two counts of global steps must agree."""

    def __init__(self, logger: Any) -> None:
        """Stand before the logger."""
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        """Everything else is the logger's own."""
        return getattr(self._logger, name)

    def log_metrics(self, metrics: Mapping[str, Any], step: int, *args: Any, **kwargs: Any) -> Any:
        """Compare where the metrics are those of a step, and log.

        Raises:
            BatchFactsError: the loop is at another step than we are.
        """
        ours = metrics.get(GLOBAL_STEPS)
        if ours is not None and int(ours) != step:
            raise BatchFactsError(
                f"NeMo-RL logs step {step}, {int(ours)} were trained here; expected the same number: a step was "
                "trained twice, skipped or lost on resuming"
            )
        return self._logger.log_metrics(metrics, step, *args, **kwargs)


def trained_rows(data: Any) -> int:
    """Responses with a token in the loss."""
    return int(((data["token_mask"].sum(dim=1) > 0) & (data["sample_mask"] > 0)).sum())


def trained_tokens(data: Any) -> int:
    """Tokens in the loss."""
    return int((data["token_mask"] * data["sample_mask"].unsqueeze(1)).sum())


def _facts(context: StepContext, data: Any, result: Any) -> dict[str, tuple[int, int]]:
    spec, outcome = context.spec, context.outcome
    groups = int(torch.unique(outcome.batch.group_B).numel())
    dropped = int(outcome.truncated_B.sum()) if spec.overlong_filter else 0
    metrics = result["all_mb_metrics"]
    # NeMo-RL divides every metric by the number of optimizer steps, so that their sum is the mean over steps.
    steps = spec.optimizer_steps
    facts = {
        "the number of responses generated": (outcome.batch.responses, spec.responses),
        "the number of responses rewarded": (int(outcome.batch.task_reward_B.numel()), spec.responses),
        "the number of responses trained": (trained_rows(data), spec.responses - dropped),
        "the number of responses in the workers' losses": (
            round(sum(metrics["num_valid_samples"]) * steps),
            trained_rows(data),
        ),
        "the number of tokens in the workers' losses": (
            round(sum(metrics[f"{PREFIX}trained_tokens"]) * steps),
            trained_tokens(data),
        ),
        "the number of optimizer steps": (int(result["loss"].numel()), steps),
        # The data loader draws without replacement, and never over the end of an epoch.
        "the number of different problems": (outcome.unique_prompts, spec.prompts_per_step),
        "the largest number of responses to one problem": (outcome.most_responses, spec.responses_per_prompt),
    }
    if spec.conventions.grouping == "paper":
        facts["the number of prompt groups"] = (groups, spec.prompts_per_step)
    return facts
