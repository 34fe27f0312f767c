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
from nemo_uecr.data.batch_file import turn_labels
from nemo_uecr.nemo.score_checks import BatchFactsError, ContractError, check_same
from nemo_uecr.nemo.step import StepContext, StepOutcome
from nemo_uecr.steps.step_record import StepRecord


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
    ) -> Tensor:
        """[B, S] advantages of the first surrogate, 0 outside the sampled tokens.

        The prompts are read only where groups are formed NeMo-RL's way, the reference not at all: the KL is in the
        loss. ``valid_mask`` [B], of later versions, marks the responses that count in their group's mean and deviation.
        """
        context, config, scores = self._context, self._context.config, self._context.scores
        check_same(logprobs_policy, scores.student.rollout_logp_BT, what="prev_logprobs")
        check_same(mask, scores.token_mask_BS * scores.sample_mask_B.unsqueeze(1), what="the token mask")
        if valid_mask is not None and not bool(valid_mask.all()):
            raise BatchFactsError(
                f"NeMo-RL leaves {int((valid_mask == 0).sum())} of {valid_mask.numel()} responses out of their groups' "
                "statistics; expected whole groups: switch off what invalidates responses"
            )
        problems = [int(problem) for problem in repeated_batch["idx"]]
        if context.routes and [context.routes.by_problem[problem] for problem in problems] != list(scores.teachers):
            raise ContractError("rows were scored by the wrong teachers; expected those that routing.key gives")
        place_of = {problem: place for place, problem in enumerate(dict.fromkeys(problems))}
        group_B = torch.tensor([place_of[problem] for problem in problems])
        if config.conventions.grouping == "nemo_rl":  # two equal prompts become one group
            group_B = torch.unique(prompt_ids, dim=0, return_inverse=True)[1]
        mask_BS = scores.token_mask_BS.bool()
        record = StepRecord(
            step=context.step,
            problems=problems,
            task_reward_B=rewards.float(),
            group_B=group_B,
            mask_BT=mask_BS,
            token_ids_BT=scores.token_ids_BS,
            correct_B=rewards.float() >= config.correct_at,
            truncated_B=torch.as_tensor(repeated_batch["truncated"], dtype=torch.bool),
            student=scores.student,
            teacher=scores.teacher,
            teachers=scores.teachers,
            segments_BT=turn_labels(scores.token_ids_BS, mask_BS, config.method, context.tokenizer),
            compared=scores.compared,
            run=context.run_state,
        )
        advantages, tolerances = compute(config.method, record.scored), config.tolerances.model_dump()
        residuals = check_identities(config.method, record.scored, advantages, tolerances)
        context.outcome = StepOutcome(record, advantages, residuals, advantages.advantage_BT.clone())
        return advantages.advantage_BT
