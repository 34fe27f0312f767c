"""NeMo-RL's batch to the record of `core`, and the method's advantages back.

Shape legend: B = responses, S = tokens of prompt and response (padded), P = prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core.invariants import check_identities
from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.nemo.context import StepContext, StepOutcome
from nemo_uecr.nemo.contract import check_same
from nemo_uecr.nemo.errors import BatchFactsError
from nemo_uecr.nemo.turns import turn_labels


class UecrEstimator:
    """What NeMo-RL's loop calls for its advantages."""

    def __init__(self, context: StepContext) -> None:
        """Share the step with the policy."""
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

        Args:
            prompt_ids: [B, *] padded prompt tokens; read only where groups are formed NeMo-RL's way.
            rewards: [B] verifier reward.
            mask: [B, S] tokens in the loss.
            repeated_batch: the rollouts; ``idx`` is the problem of each row.
            logprobs_policy: [B, S] old policy at T_r, as the policy handed it out.
            logprobs_reference: [B, S] reference policy; not read here, the KL is in the loss.
            valid_mask: [B] responses that count in their group's mean and deviation, where NeMo-RL says so; the
                method's groups are whole, so all of them must.

        Raises:
            ContractError: the columns are not those that were scored.
            BatchFactsError: rows or groups do not add up.
            InvariantError: an identity that the method declares does not hold.
        """
        spec, scores = self._context.spec, self._context.scores
        check_same(logprobs_policy, scores.student.logp[0], what="prev_logprobs")
        check_same(mask, scores.token_mask_BS * scores.sample_mask_B.unsqueeze(1), what="the token mask")
        problems = _problems(repeated_batch["idx"], rewards)
        by_place = spec.conventions.grouping == "paper"
        if valid_mask is not None and not bool(valid_mask.all()):
            raise BatchFactsError(
                f"NeMo-RL leaves {int((valid_mask == 0).sum())} of {valid_mask.numel()} responses out of their groups' "
                "statistics; expected whole groups: switch off what invalidates responses"
            )
        place_B = slots(problems, spec.responses_per_prompt)
        group_B = place_B if by_place else equal_rows(prompt_ids)
        batch = self._record(rewards, group_B, problems)
        settings = spec.settings_of(self._context.completed_steps)
        advantages = spec.method.compute(batch, settings, detail=True)
        residuals = check_identities(spec.method, batch, settings, advantages, spec.tolerances)
        outcome = StepOutcome(
            batch=batch,
            settings=settings,
            advantages=advantages,
            residuals=residuals,
            truncated_B=torch.as_tensor(repeated_batch["truncated"], dtype=torch.bool),
            unique_prompts=len(set(problems)),
            most_responses=max(Counter(problems).values()),
            handed_out_BS=advantages.advantage_BT.clone(),
        )
        self._context.outcome = outcome
        return advantages.advantage_BT

    def _record(self, rewards: Tensor, group_B: Tensor, problems: Sequence[int]) -> ScoredBatch:
        context = self._context
        scores, teacher = context.scores, context.scores.teacher
        mask_BS = scores.token_mask_BS.bool()
        separator = context.spec.turn_separator
        labels = None if separator is None else turn_labels(scores.token_ids_BS, mask_BS, separator, context.tokenizer)
        step = context.completed_steps + 1
        return ScoredBatch(
            task_reward_B=rewards.float(),
            group_B=group_B,
            mask_BT=mask_BS,
            old_logp_BT=scores.student.logp[1],
            teacher_logp_BT=None if teacher is None else teacher.logp[0],
            teacher_entropy_BT=None if teacher is None else teacher.entropy_BS,
            segments_BT=labels,
            sample_ids=tuple(f"step {step}, problem {problem}, row {row}" for row, problem in enumerate(problems)),
        )


def slots(problems: Sequence[int], responses_per_prompt: int) -> Tensor:
    """[B] the prompt's place in the step; two draws of one problem, even side by side, stay apart.

    A place ends after G rows, or earlier where the problem changes.

    Raises:
        BatchFactsError: a problem's rows are not side by side.
    """
    places: list[int] = []
    filled = 0
    for row, problem in enumerate(problems):
        fresh = row == 0 or filled == responses_per_prompt or problem != problems[row - 1]
        places.append((places[-1] + 1 if places else 0) if fresh else places[-1])
        filled = 1 if fresh else filled + 1
    torn = Counter(problems[row] for row in range(len(places)) if row == 0 or places[row] != places[row - 1])
    for problem, times in torn.items():
        if times > -(-problems.count(problem) // responses_per_prompt):
            raise BatchFactsError(
                f"the rows of problem {problem} are not side by side; expected {responses_per_prompt} neighbours: "
                "rows were reordered between rollout and advantages"
            )
    return torch.tensor(places)


def equal_rows(prompt_ids: Tensor) -> Tensor:
    """[B] groups of equal prompt token rows, NeMo-RL's own rule: two equal prompts become one group."""
    group_B: Tensor = torch.unique(prompt_ids, dim=0, return_inverse=True)[1]
    return group_B


def _problems(idx: Any, rewards: Tensor) -> list[int]:
    problems = [int(value) for value in idx]
    if len(problems) != rewards.shape[0]:
        raise BatchFactsError(f"{rewards.shape[0]} rewards for {len(problems)} responses; expected one each")
    return problems
