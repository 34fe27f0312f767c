"""A step's numbers under the same names as the local back end; NeMo-RL's logger puts ``train/`` before them."""

from __future__ import annotations

from typing import Any

import torch

from nemo_uecr.errors import InvariantError
from nemo_uecr.nemo.context import StepContext
from nemo_uecr.nemo.facts import GLOBAL_STEPS, trained_rows, trained_tokens
from nemo_uecr.nemo.loss import PREFIX
from nemo_uecr.telemetry.metrics import identity_metrics, length_metrics, method_metrics


def step_metrics(context: StepContext, data: Any, result: Any) -> dict[str, float]:
    """Every metric of the step that the adapter knows.

    Raises:
        InvariantError: the ratio of the first update is further from 1 than ``tolerances.first_ratio``.
    """
    spec, outcome = context.spec, context.outcome
    batch = outcome.batch
    return {
        **method_metrics(batch, outcome.advantages, outcome.settings, noise=spec.scoring_noise),
        **length_metrics(batch.mask_BT, outcome.truncated_B),
        **identity_metrics(outcome.residuals),
        **_policy(context, result),
        **_counts(context, data),
        **{f"time/{name}_s": seconds for name, seconds in context.seconds.items()},
    }


def _policy(context: StepContext, result: Any) -> dict[str, float]:
    spec, metrics = context.spec, result["all_mb_metrics"]

    def mean(name: str) -> float:
        return float(sum(metrics[name]))

    # torch's maximum keeps a NaN, Python's loses it behind any number.
    error = float(torch.tensor(metrics[f"{PREFIX}first_ratio_error_max"]).max())
    if not error <= spec.tolerances["first_ratio"]:
        raise InvariantError(
            f"the PPO ratio of the first update is off 1 by {error:.3g}; expected at most "
            f"tolerances.first_ratio={spec.tolerances['first_ratio']:g}, because nothing was updated yet"
        )
    values = {
        "policy/loss": mean("loss"),
        "policy/pg_loss": mean(f"{PREFIX}pg_loss"),
        "policy/ratio_mean": mean("probs_ratio"),
        "policy/ratio_min": min(metrics["probs_ratio_min"]),
        "policy/ratio_max": max(metrics["probs_ratio_max"]),
        "policy/clip_low_share": mean(f"{PREFIX}clip_low_share"),
        "policy/clip_high_share": mean(f"{PREFIX}clip_high_share"),
        "policy/approx_kl": mean(f"{PREFIX}approx_kl"),
        "policy/first_ratio_error": error,
        "policy/grad_norm": float(result["grad_norm"].double().mean()),
    }
    entropy_BS = context.scores.student.entropy_BS
    if entropy_BS is not None:
        values["policy/entropy"] = float(entropy_BS[context.outcome.batch.mask_BT].double().mean())
    if spec.kl_coef > 0:
        values["policy/ref_kl"] = mean(f"{PREFIX}ref_kl" if spec.conventions.kl == "paper" else "kl_penalty")
    return values


def _counts(context: StepContext, data: Any) -> dict[str, float]:
    outcome = context.outcome
    return {
        "count/prompts": float(torch.unique(outcome.batch.group_B).numel()),
        "count/unique_prompts": float(outcome.unique_prompts),
        "count/trajectories": float(outcome.batch.responses),
        "count/rewarded": float(outcome.batch.task_reward_B.numel()),
        "count/trained": float(trained_rows(data)),
        "count/valid_tokens": float(trained_tokens(data)),
        GLOBAL_STEPS: float(context.completed_steps + 1),
        "count/optimizer_steps": float(context.optimizer_steps + context.spec.optimizer_steps),
    }
