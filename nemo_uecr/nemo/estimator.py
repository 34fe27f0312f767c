"""One step: what the policy scored, the record that `core` reads of it, and the method's advantages for NeMo-RL's loop.

NeMo-RL hands neither scores nor advantages on, so policy and estimator share a `StepContext`.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.core.functions import compute
from nemo_uecr.core.invariants import check_identities
from nemo_uecr.core.methods import Advantages, RunState
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.data.batch_file import turn_labels
from nemo_uecr.data.reproducible import derive
from nemo_uecr.nemo.contract import BatchFactsError, ContractError, Scores, check_same
from nemo_uecr.nemo.two_temperatures import ScoreRequest


@dataclass(frozen=True)
class Routes:
    """Each problem's teacher: by its prompt's token ids, which are all that scoring sees, and by its number."""

    by_prompt: Mapping[tuple[int, ...], str]
    by_problem: Sequence[str]

    def names(self, token_ids_BS: Tensor, token_mask_BS: Tensor) -> list[str]:
        """The teacher of each row, whose prompt ends before its first sampled token."""
        prompt_B = token_mask_BS.bool().int().argmax(dim=1).tolist()
        prompts = [tuple(ids[:end]) for ids, end in zip(token_ids_BS.tolist(), prompt_B, strict=True)]
        if unknown := [row for row, prompt in enumerate(prompts) if prompt not in self.by_prompt]:
            raise ContractError(
                f"the prompt of row {unknown[0]} belongs to no training problem, so its teacher is unknown; expected "
                "prompts rendered as the section `data` says"
            )
        return [self.by_prompt[prompt] for prompt in prompts]


@dataclass(frozen=True)
class StepScores:
    """All scores of a step with the columns of the batch they were computed from."""

    student: Scores  # old policy at (T_r, 1)
    teacher: Scores | None  # at 1; None when the method reads no teacher
    token_mask_BS: Tensor
    sample_mask_B: Tensor
    token_ids_BS: Tensor
    teachers: Sequence[str] = ()  # of several, each row's


@dataclass(frozen=True)
class StepOutcome:
    """What the estimator made of a step's scores."""

    batch: ScoredBatch
    advantages: Advantages
    residuals: Mapping[str, float]  # worst of each identity
    truncated_B: Tensor
    problems: Sequence[int]  # number of the problem of each response
    handed_out_BS: Tensor  # the advantages as NeMo-RL got them


@dataclass
class StepContext:
    """One run's shared state. The policy sets the scores, the estimator the outcome; after the step both are gone."""

    config: NemoConfig
    tokenizer: Any
    completed_steps: int  # those of the checkpoint included
    components: Callable[[], dict[str, float]] = dict  # metrics of the rewards that the environment has summed
    routes: Routes | None = None  # where there are several teachers
    seconds: dict[str, float] = field(default_factory=dict)
    state: Mapping[str, float] = field(default_factory=dict)  # what the method carried over
    scores: StepScores = field(init=False)
    outcome: StepOutcome = field(init=False)

    @property
    def run_state(self) -> RunState:
        """What the run gives the method in this step, with the local back end's seed."""
        seed = derive(self.config.run.seed, "shuffle", self.completed_steps + 1) % 2**31
        return RunState(self.completed_steps, self.config.train.steps, seed, self.state)

    @property
    def responses(self) -> int:
        """B."""
        return self.config.rollout.prompts_per_step * self.config.rollout.responses_per_prompt

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps a batch."""
        return self.responses // self.config.train.minibatch_responses

    @property
    def student_request(self) -> ScoreRequest:
        """Both temperatures, and the entropy for telemetry, from one forward."""
        temperatures = (self.config.rollout.temperature, 1.0)
        return ScoreRequest(temperatures, True, self.config.student.vocabulary, self.config.scoring.chunk_tokens)

    def teacher_request(self, columns: int) -> ScoreRequest:
        """At temperature 1 whatever the student's, from a teacher with so many columns; the entropy if it is read."""
        entropy = "teacher_entropy" in self.config.method.reads
        whole = ScoreRequest((1.0,), entropy, self.config.student.vocabulary, self.config.scoring.chunk_tokens)
        return whole.to_teacher(columns)

    def finish(self) -> None:
        """End the step; its tensors are released."""
        self.completed_steps += 1
        self.seconds, self.state = {}, self.outcome.advantages.state or {}
        del self.scores, self.outcome


class UecrEstimator:
    """What NeMo-RL's loop calls for its advantages."""

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
        loss. ``valid_mask`` [B], of later versions, says which responses count in their group's mean and deviation.
        """
        context, config, scores = self._context, self._context.config, self._context.scores
        check_same(logprobs_policy, scores.student.logp[0], what="prev_logprobs")
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
        by_problem = config.conventions.grouping == "paper"
        teacher, step = scores.teacher, context.completed_steps + 1
        mask_BS = scores.token_mask_BS.bool()
        batch = ScoredBatch(
            task_reward_B=rewards.float(),
            group_B=torch.tensor([place_of[problem] for problem in problems]) if by_problem else equal_rows(prompt_ids),
            mask_BT=mask_BS,
            old_logp_BT=scores.student.logp[1],
            teacher_logp_BT=None if teacher is None else teacher.logp[0],
            teacher_entropy_BT=None if teacher is None else teacher.entropy_BS,
            student_entropy_BT=scores.student.entropy_BS,
            segments_BT=turn_labels(scores.token_ids_BS, mask_BS, config.method, context.tokenizer),
            sample_ids=tuple(f"step {step}, problem {problem}, row {row}" for row, problem in enumerate(problems)),
            run=context.run_state,
        )
        advantages, tolerances = compute(config.method, batch), config.tolerances.model_dump()
        context.outcome = StepOutcome(
            batch=batch,
            advantages=advantages,
            residuals=check_identities(config.method, batch, advantages, tolerances),
            truncated_B=torch.as_tensor(repeated_batch["truncated"], dtype=torch.bool),
            problems=problems,
            handed_out_BS=advantages.advantage_BT.clone(),
        )
        return advantages.advantage_BT


def equal_rows(prompt_ids: Tensor) -> Tensor:
    """[B] groups of equal prompt token rows, NeMo-RL's own rule: two equal prompts become one group."""
    group_B: Tensor = torch.unique(prompt_ids, dim=0, return_inverse=True)[1]
    return group_B
