"""What a trained step leaves behind: an audit of its counts, its metrics, and its batch on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from nemo_uecr.nemo.loss import PREFIX, first_ratio_error
from nemo_uecr.nemo.score_checks import BatchFactsError
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.nemo.upstream import components
from nemo_uecr.steps.metrics import check_first_ratio, count_metrics, turn_metrics, warn_behind
from nemo_uecr.steps.step_record import StepRecord


def check_step_counts(context: StepContext, data: Mapping[str, Tensor], result: Any) -> None:
    """What was generated, scored and trained must add up with the recipe and the workers' own counts.

    ``data`` holds NeMo-RL's training columns with the method's mask, ``result`` what the policy's training returned.
    """
    outcome, metrics = context.outcome, result["all_mb_metrics"]
    record, left_BS = outcome.record, outcome.mask_BS.bool()  # too long prompts and filtered responses are not left
    expected_B = (outcome.advantages.trained(record.mask_BT) & left_BS).any(dim=1)
    # NeMo-RL divides every metric by the number of optimizer steps, so that their sum is the mean over steps.
    steps, (rows, tokens) = context.settings.optimizer_steps, _trained(data)
    facts = {
        "responses generated": (len(record.problems), context.settings.responses),
        "responses trained": (rows, int(expected_B.sum())),
        "responses in the workers' losses": (
            round(sum(metrics["num_valid_samples"]) * steps), int(data["sample_mask"].sum()),
        ),
        "tokens in the workers' losses": (round(sum(metrics[f"{PREFIX}trained_tokens"]) * steps), tokens),
        "optimizer steps": (int(result["loss"].numel()), steps),
    }  # fmt: skip
    for name, (counted, expected) in facts.items():
        if counted != expected:
            raise BatchFactsError(
                f"step {context.step}: {counted} {name}; expected {expected}. Responses or tokens were "
                "lost, duplicated or masked between rollout and update"
            )


def training_metrics(context: StepContext, data: Mapping[str, Tensor], result: Any) -> dict[str, float]:
    """The step's numbers that its training adds; NeMo-RL's logger puts ``train/`` before all of them."""
    rows, tokens = _trained(data)
    updates = context.step * context.settings.optimizer_steps
    counts = count_metrics(context.outcome.record, trained=rows, tokens=tokens, optimizer_steps=updates)
    rewards = components() if context.settings.own_rewards else {}
    turns = turn_metrics(context.outcome.record.scored) if context.settings.max_turns > 1 else {}
    return {**_policy(context, result), **rewards, **turns, **counts, **context.watch.phases()}


def save_step(context: StepContext, data: Mapping[str, Tensor]) -> None:
    """Write the step's batch when it is due."""
    settings, outcome = context.settings, context.outcome
    every = settings.save_batch_every
    if every == 0 or context.step % every:
        return
    reference_BS = data["reference_policy_logprobs"] if settings.reference_kl > 0 else None
    record = replace(
        outcome.record, reference_rollout_logp_BT=reference_BS, generator_logp_BT=data["generation_logprobs"]
    )
    record.save(
        Path(settings.folder) / "batches" / f"step-{context.step:06d}.parquet", settings.method, outcome.advantages,
        rows=_texts(record, context.tokenizer, played=settings.plays), tokenizer=context.tokenizer, teachers={},
        prompts=True,
    )  # fmt: skip


def _texts(record: StepRecord, tokenizer: Any, *, played: bool) -> dict[str, list[Any]]:
    """The prompt of each row, which ends before the first sampled token, and the text of the response after it.

    Where they are ``played`` equal prompts may be several problems, each a game of its own.
    """
    sampled_BS, ids_BS = record.mask_BT, record.token_ids_BT
    ends = sampled_BS.int().argmax(dim=1).tolist()
    turns = [_turns(ids_S, sampled_S) for ids_S, sampled_S in zip(ids_BS, sampled_BS, strict=True)]
    return {
        "prompt_ids": [ids_S[:end].tolist() for ids_S, end in zip(ids_BS, ends, strict=True)],
        "response": ["\n".join(tokenizer.decode(ids_N, skip_special_tokens=True) for ids_N in own) for own in turns],
    } | ({"asked": [f"problem {problem}" for problem in record.problems]} if played else {})


def _turns(ids_S: Tensor, sampled_S: Tensor) -> list[Tensor]:
    """Each run of sampled tokens."""
    ends_E = (sampled_S[1:] != sampled_S[:-1]).nonzero()[:, 0] + 1
    runs = zip(ids_S.tensor_split(ends_E), sampled_S.tensor_split(ends_E), strict=True)
    return [ids_N for ids_N, sampled_N in runs if sampled_N[:1].any()]


def _policy(context: StepContext, result: Any) -> dict[str, float]:
    settings, metrics = context.settings, result["all_mb_metrics"]

    def mean(name: str) -> float:
        return float(sum(metrics[name]))

    first = {  # the later optimizer steps add 0 to a mean over all of them
        "policy/first_ratio_error": first_ratio_error(metrics),
        "policy/first_ratio_mean": mean(f"{PREFIX}first_ratio_mean") * context.settings.optimizer_steps,
        "policy/first_ratio_far_share": mean(f"{PREFIX}first_ratio_far_share") * context.settings.optimizer_steps,
    }
    check_first_ratio(first, settings.tolerances)
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
    if settings.lag:
        values["policy/behind_kl"] = behind = mean(f"{PREFIX}behind_kl")
        warn_behind(behind, context.step, "grpo.async_grpo.max_trajectory_age_steps or the learning rate")
    if settings.reference_kl > 0:
        values["policy/ref_kl"] = mean(f"{PREFIX}ref_kl")
    return values


def _trained(data: Mapping[str, Tensor]) -> tuple[int, int]:
    """Responses with a token in the loss, and tokens in it."""
    tokens_B = (data["token_mask"] * data["sample_mask"].unsqueeze(1)).sum(dim=1)
    return int((tokens_B > 0).sum()), int(tokens_B.sum())
