"""What a trained step leaves behind: an audit of its counts, its metrics, and its batch on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.nemo.loss import PREFIX
from nemo_uecr.nemo.score_checks import BatchFactsError
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.nemo.upstream import components
from nemo_uecr.steps.metrics import check_first_ratio, count_metrics
from nemo_uecr.telemetry.sinks import append_record, read_records, truncate_records

#: What a method carries from step to step, in the run folder.
METHOD_STATE = "method_state.jsonl"


def check_step_counts(context: StepContext, data: Mapping[str, Tensor], result: Any) -> None:
    """What was drawn, generated and trained must add up with the configuration and the workers' own counts.

    ``data`` holds NeMo-RL's training columns with the method's mask, ``result`` what the policy's training returned.
    """
    config, record, metrics = context.config, context.outcome.record, result["all_mb_metrics"]
    kept_B = context.outcome.advantages.trained(record.mask_BT).any(dim=1)
    if config.rollout.overlong_filter:
        kept_B = kept_B & ~record.truncated_B
    # NeMo-RL divides every metric by the number of optimizer steps, so that their sum is the mean over steps.
    steps, (rows, tokens) = context.optimizer_steps, _trained(data)
    facts = {
        "responses generated": (len(record.problems), context.responses),
        "responses trained": (rows, int(kept_B.sum())),
        "responses in the workers' losses": (round(sum(metrics["num_valid_samples"]) * steps), rows),
        "tokens in the workers' losses": (round(sum(metrics[f"{PREFIX}trained_tokens"]) * steps), tokens),
        "optimizer steps": (int(result["loss"].numel()), steps),
        # The data loader draws without replacement, and never over the end of an epoch.
        "different problems": (len(set(record.problems)), config.rollout.prompts_per_step),
        "responses to one problem": (max(Counter(record.problems).values()), config.rollout.responses_per_prompt),
    }
    if config.conventions.grouping == "paper":
        facts["prompt groups"] = (int(torch.unique(record.group_B).numel()), config.rollout.prompts_per_step)
    for name, (counted, expected) in facts.items():
        if counted != expected:
            raise BatchFactsError(
                f"step {context.step}: {counted} {name}; expected {expected}. Responses or tokens were "
                "lost, duplicated or masked between rollout and update"
            )


def training_metrics(context: StepContext, data: Mapping[str, Tensor], result: Any) -> dict[str, float]:
    """The step's numbers that its training adds; NeMo-RL's logger puts ``train/`` before all of them."""
    rows, tokens = _trained(data)
    updates = context.step * context.optimizer_steps
    counts = count_metrics(context.outcome.record, trained=rows, tokens=tokens, optimizer_steps=updates)
    return {**_policy(context, result), **components(context.environment), **counts, **context.watch.phases()}


def save_step(context: StepContext, data: Mapping[str, Tensor]) -> None:
    """Write the step's batch when it is due."""
    config, outcome = context.config, context.outcome
    every = config.telemetry.save_batch_every
    if every == 0 or context.step % every:
        return
    reference_BS = data["reference_policy_logprobs"] if config.loss.reference_kl > 0 else None
    record = replace(outcome.record, reference_rollout_logp_BT=reference_BS)
    path = Path(config.run.folder) / "batches" / f"step-{context.step:06d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    record.save(path, config.method, outcome.advantages)


def save_state(context: StepContext) -> None:
    """Append what the method carries over; NeMo-RL's checkpoints have no place for it."""
    if context.state:
        folder = Path(context.config.run.folder)
        append_record(folder / METHOD_STATE, {"step": context.completed_steps, **context.state})


def resumed_state(folder: Path, *, step: int) -> dict[str, float]:
    """What the method carried over from that step; what came after it is dropped."""
    truncate_records(folder / METHOD_STATE, last_step=step)
    records = read_records(folder / METHOD_STATE)[0]
    return {name: value for name, value in records[-1].items() if name != "step"} if records else {}


def _policy(context: StepContext, result: Any) -> dict[str, float]:
    config, metrics = context.config, result["all_mb_metrics"]

    def mean(name: str) -> float:
        return float(sum(metrics[name]))

    first = {  # the later optimizer steps add 0 to a mean over all of them
        "policy/first_ratio_error": max(metrics[f"{PREFIX}first_ratio_error_max"]),
        "policy/first_ratio_mean": mean(f"{PREFIX}first_ratio_mean") * context.optimizer_steps,
        "policy/first_ratio_far_share": mean(f"{PREFIX}first_ratio_far_share") * context.optimizer_steps,
    }
    check_first_ratio(first, config.tolerances)
    values = {
        "policy/loss": mean("loss"),
        "policy/pg_loss": mean(f"{PREFIX}pg_loss"),
        "policy/ratio_mean": mean("probs_ratio"),
        "policy/ratio_min": min(metrics["probs_ratio_min"]),
        "policy/ratio_max": max(metrics["probs_ratio_max"]),
        "policy/clip_low_share": mean(f"{PREFIX}clip_low_share"),
        "policy/clip_high_share": mean(f"{PREFIX}clip_high_share"),
        "policy/approx_kl": mean(f"{PREFIX}approx_kl"),
        **first,
        "policy/grad_norm": float(result["grad_norm"].double().mean()),
    }
    if config.loss.reference_kl > 0:
        values["policy/ref_kl"] = mean(f"{PREFIX}ref_kl" if config.conventions.kl == "paper" else "kl_penalty")
    return values


def _trained(data: Mapping[str, Tensor]) -> tuple[int, int]:
    """Responses with a token in the loss, and tokens in it."""
    tokens_B = (data["token_mask"] * data["sample_mask"].unsqueeze(1)).sum(dim=1)
    return int((tokens_B > 0).sum()), int(tokens_B.sum())
