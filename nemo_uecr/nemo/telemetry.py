"""What a trained step leaves behind: an audit of its counts, its metrics, and its batch on disk.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.data.batch_file import arithmetic, save_batch, tensors_of
from nemo_uecr.nemo.contract import BatchFactsError
from nemo_uecr.nemo.estimator import StepContext
from nemo_uecr.nemo.loss import PREFIX
from nemo_uecr.nemo.two_temperatures import witnessed_token
from nemo_uecr.telemetry.metrics import (
    agreement_metrics,
    check_first_ratio,
    described,
    method_metrics,
    teacher_metrics,
)
from nemo_uecr.telemetry.sinks import append_record, read_records, truncate_records

#: What a method carries from step to step, in the run folder.
METHOD_STATE = "method_state.jsonl"


def check_facts(context: StepContext, data: Mapping[str, Tensor], result: Any) -> None:
    """What was drawn, generated and trained must add up with the configuration and the workers' own counts.

    ``data`` holds NeMo-RL's training columns with the method's mask, ``result`` what the policy's training returned.
    """
    config, outcome, metrics = context.config, context.outcome, result["all_mb_metrics"]
    kept_B = outcome.advantages.trained(outcome.batch.mask_BT).any(dim=1)
    if config.rollout.overlong_filter:
        kept_B = kept_B & ~outcome.truncated_B
    # NeMo-RL divides every metric by the number of optimizer steps, so that their sum is the mean over steps.
    steps, rows, tokens = context.optimizer_steps, _trained_rows(data), _trained_tokens(data)
    facts = {
        "responses generated": (outcome.batch.responses, context.responses),
        "responses trained": (rows, int(kept_B.sum())),
        "responses in the workers' losses": (round(sum(metrics["num_valid_samples"]) * steps), rows),
        "tokens in the workers' losses": (round(sum(metrics[f"{PREFIX}trained_tokens"]) * steps), tokens),
        "optimizer steps": (int(result["loss"].numel()), steps),
        # The data loader draws without replacement, and never over the end of an epoch.
        "different problems": (len(set(outcome.problems)), config.rollout.prompts_per_step),
        "responses to one problem": (max(Counter(outcome.problems).values()), config.rollout.responses_per_prompt),
    }
    if config.conventions.grouping == "paper":
        facts["prompt groups"] = (_groups(context), config.rollout.prompts_per_step)
    for name, (found, expected) in facts.items():
        if found != expected:
            raise BatchFactsError(
                f"step {context.completed_steps + 1}: {found} {name}; expected {expected}. Responses or tokens were "
                "lost, duplicated or masked between rollout and update"
            )


def scored_metrics(context: StepContext, data: Mapping[str, Tensor]) -> dict[str, float]:
    """The numbers of a step's rewards, scores and advantages, under the names of the local back end."""
    outcome, batch = context.outcome, context.outcome.batch
    teacher, dropped = context.scores.teacher, {}
    if teacher is not None and teacher.dropped_BS is not None:
        dropped_N = teacher.dropped_BS[outcome.advantages.trained(batch.mask_BT)]
        dropped["teacher/dropped_mass"] = dropped_N[dropped_N.isfinite()]  # NaN of teachers that were not cut
    return {
        **described(dropped),
        **method_metrics(
            batch,
            outcome.advantages,
            context.config.method,
            outcome.residuals,
            correct_B=batch.task_reward_B >= context.config.correct_at,
            truncated_B=outcome.truncated_B,
        ),
        **teacher_metrics(batch, outcome.advantages, context.scores.teachers),
        **_agreement(context, data["input_lengths"]),
    }


def step_metrics(context: StepContext, data: Mapping[str, Tensor], result: Any) -> dict[str, float]:
    """The step's other numbers, once it is trained; NeMo-RL's logger puts ``train/`` before all of them."""
    outcome, batch = context.outcome, context.outcome.batch
    return {
        **_policy(context, result),
        **context.components(),
        "count/prompts": float(_groups(context)),
        "count/unique_prompts": float(len(set(outcome.problems))),
        "count/trajectories": float(batch.responses),
        "count/rewarded": float(batch.task_reward_B.numel()),
        "count/trained": float(_trained_rows(data)),
        "count/valid_tokens": float(_trained_tokens(data)),
        "count/global_steps": float(context.completed_steps + 1),
        "count/optimizer_steps": float((context.completed_steps + 1) * context.optimizer_steps),
        **{f"time/{name}_s": seconds for name, seconds in context.seconds.items()},
    }


def save_step(context: StepContext, data: Mapping[str, Tensor]) -> None:
    """Write the step's batch when it is due, in the project's one format, for replay and the credit map."""
    config, step = context.config, context.completed_steps + 1
    every = config.telemetry.save_batch_every
    if every == 0 or step % every:
        return
    tensors = tensors_of(context.outcome.batch) | context.outcome.advantages.loss_tensors()
    tensors |= {"old_logp_rollout": context.scores.student.logp[0], "token_ids": context.scores.token_ids_BS}
    if config.loss.reference_kl > 0:
        tensors["ref_logp"] = data["reference_policy_logprobs"]
    folder = Path(config.run.folder) / "batches"
    folder.mkdir(parents=True, exist_ok=True)
    save_batch(
        folder / f"step-{step:06d}.safetensors",
        tensors,
        method=config.method,
        run=context.outcome.batch.run,
        step=step,
        arithmetic=arithmetic(),
        teachers=context.scores.teachers,
    )


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


def _agreement(context: StepContext, lengths_B: Tensor) -> dict[str, float]:
    """At the witnessed tokens that are trained: one a response, in its middle."""
    scores, outcome = context.scores, context.outcome
    if scores.teacher is None or scores.teacher.top_BK is None or scores.student.top_BK is None:
        return {}
    column_B = witnessed_token(lengths_B)
    kept_B = outcome.advantages.trained(outcome.batch.mask_BT).gather(1, column_B.unsqueeze(1)).squeeze(1)
    names = [name for name, kept in zip(scores.teachers, kept_B.tolist(), strict=False) if kept]
    return agreement_metrics(scores.student.top_BK[kept_B], scores.teacher.top_BK[kept_B], names)


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


def _groups(context: StepContext) -> int:
    return int(torch.unique(context.outcome.batch.group_B).numel())


def _trained_rows(data: Mapping[str, Tensor]) -> int:
    """Responses with a token in the loss."""
    return int(((data["token_mask"].sum(dim=1) > 0) & (data["sample_mask"] > 0)).sum())


def _trained_tokens(data: Mapping[str, Tensor]) -> int:
    """Tokens in the loss."""
    return int((data["token_mask"] * data["sample_mask"].unsqueeze(1)).sum())
