"""What NeMo-RL's loop calls for its advantages: the step's record, and the method's advantages of it.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core.functions import compute
from nemo_uecr.core.invariants import check_identities
from nemo_uecr.nemo.recipe import PROBLEM
from nemo_uecr.nemo.score_checks import BatchFactsError, ContractError, check_same
from nemo_uecr.nemo.step import StepContext, StepOutcome
from nemo_uecr.steps.step_record import StepRecord, turn_labels


class UecrEstimator:
    """The advantage estimator that NeMo-RL's loop calls: the run's method on the scores in the `StepContext`."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    def compute_advantage(
        self,
        prompt_ids: Tensor,
        rewards: Tensor,
        mask: Tensor,
        repeated_batch: Mapping[str, Any],
        logprobs_policy: Tensor,
        logprobs_reference: Tensor | None,
        valid_mask: Tensor | None = None,
        **unread: Any,
    ) -> Tensor:
        """[B, S] advantages of the first surrogate, 0 outside the sampled tokens.

        The prompts are read only where groups are formed NeMo-RL's way, the reference not at all: the KL is in the
        loss. ``valid_mask`` [B], of later versions, marks the responses that count in their group's mean and deviation.
        The asynchronous loop also passes what NeMo-RL's own distillation reads.
        """
        context, settings, scores = self._context, self._context.settings, self._context.scores
        check_same(logprobs_policy, scores.student.rollout_logp_BT, what="prev_logprobs")
        scored_BS = scores.token_mask_BS * scores.sample_mask_B.unsqueeze(1)
        kept_B = (mask > 0).any(dim=1)
        # NeMo-RL's filter of responses whose log-probabilities are off leaves whole rows out of the loss, no more.
        check_same(mask, scored_BS * kept_B.unsqueeze(1), what="the token mask")
        if valid_mask is not None and not bool(valid_mask.all()):
            raise BatchFactsError(
                f"NeMo-RL leaves {int((valid_mask == 0).sum())} of {valid_mask.numel()} responses out of their groups' "
                "statistics; expected whole groups: switch off what invalidates responses"
            )
        group_B = groups_of_rows(prompt_ids, scores.sample_mask_B.bool(), settings.responses_per_prompt)
        problems = problems_of_rows(repeated_batch, group_B, numbered=settings.numbered)
        if context.routes and context.routes.of_rows(repeated_batch) != list(scores.teachers):
            raise ContractError("rows were scored by the wrong teachers; expected those that uecr.routing.key gives")
        mask_BS = scores.token_mask_BS.bool()
        record = StepRecord(
            step=context.step,
            problems=problems,
            task_reward_B=rewards.float(),
            group_B=group_B,
            mask_BT=mask_BS,
            token_ids_BT=scores.token_ids_BS,
            correct_B=rewards.float() >= settings.correct_at,
            truncated_B=torch.as_tensor(repeated_batch["truncated"], dtype=torch.bool),
            student=scores.student,
            teacher=scores.teacher,
            teachers=scores.teachers,
            segments_BT=turn_labels(scores.token_ids_BS, mask_BS, settings.method, context.tokenizer),
            compared=scores.compared,
            run=context.run_state,
            lag=None if settings.lag else 0,  # of a response NeMo-RL's loop does not tell which policies sampled it
        )
        advantages, tolerances = compute(settings.method, record.scored), settings.tolerances.model_dump()
        residuals = check_identities(settings.method, record.scored, advantages, tolerances)
        context.outcome = StepOutcome(record, advantages, residuals, advantages.advantage_BT.clone(), mask)
        return advantages.advantage_BT


def groups_of_rows(prompt_ids: Tensor, kept_B: Tensor, responses_per_prompt: int) -> Tensor:
    """[B] each row's group: NeMo-RL repeats a prompt in place, so that a run of rows is one draw of one prompt.

    Rows of the same prompt that was drawn twice stay apart. A prompt that was too long is left out of the loss, and its
    row of ``prompt_ids`` may hold what was sampled: such rows are not compared.
    """
    rows = len(prompt_ids)
    group_B = torch.arange(rows) // responses_per_prompt
    first_B = group_B * responses_per_prompt
    if rows % responses_per_prompt or not torch.equal(prompt_ids[kept_B], prompt_ids[first_B][kept_B]):
        raise BatchFactsError(
            f"the step's {rows} rows are not whole runs of {responses_per_prompt} responses to one prompt; expected "
            "grpo.num_generations_per_prompt of them for each: rows were lost or reordered"
        )
    return group_B


def problems_of_rows(batch: Mapping[str, Any], group_B: Tensor, *, numbered: bool) -> list[str | int]:
    """Each row's problem: its number, with the task where each task numbers its own; its group where it has none.

    NeMo-Gym's rows have no number. With vLLM's asynchronous engine, where rows are not ``numbered``, the rollout writes
    the place in its own batch over the number; our data set has noted it elsewhere.
    """
    groups, tasks = group_B.tolist(), list(batch.get("task_name", ()))
    numbers = batch.get("idx", groups)
    if not numbered:
        about_B = batch.get("extra_env_info") or [None] * len(groups)
        noted = [(about or {}).get(PROBLEM) for about in about_B]
        numbers = [group if own is None else own for own, group in zip(noted, groups, strict=True)]
    if len(set(tasks)) <= 1:
        return [int(number) for number in numbers]
    return [f"{task} {int(number)}" for task, number in zip(tasks, numbers, strict=True)]
