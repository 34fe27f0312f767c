"""What the policy scored and the estimator computed in one step, shared by both because NeMo-RL hands neither on.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.nemo.contract import Scores
from nemo_uecr.nemo.errors import ContractError
from nemo_uecr.nemo.run_spec import RunSpec


@dataclass(frozen=True)
class StepScores:
    """All scores of a step with the masks of the batch they were computed from.

    Attributes:
        student: old policy at (T_r, 1).
        teacher: at 1; None when the method reads no teacher.
        token_mask_BS: [B, S] sampled response tokens.
        sample_mask_B: [B] rows in the loss.
        token_ids_BS: [B, S] ids of prompt and response.
    """

    student: Scores
    teacher: Scores | None
    token_mask_BS: Tensor
    sample_mask_B: Tensor
    token_ids_BS: Tensor


@dataclass(frozen=True)
class StepOutcome:
    """What the estimator made of a step's scores.

    Attributes:
        batch: the record that `core` read.
        settings: the method's scalars of the step.
        advantages: what the method returned, in detail.
        residuals: worst residual of each identity.
        truncated_B: [B] whether the response hit the limit.
        unique_prompts: different problems in the step.
        most_responses: responses to the problem that has most of them.
        handed_out_BS: the advantages as NeMo-RL got them.
    """

    batch: ScoredBatch
    settings: Settings
    advantages: Advantages
    residuals: Mapping[str, float]
    truncated_B: Tensor
    unique_prompts: int
    most_responses: int
    handed_out_BS: Tensor


class StepContext:
    """One run's shared state: each part of a step is put once and taken by whoever comes next."""

    def __init__(self, spec: RunSpec, *, completed_steps: int, tokenizer: Any) -> None:
        """Start after ``completed_steps`` training steps."""
        self.spec = spec
        self.resume_at(completed_steps)
        self.tokenizer = tokenizer
        self.seconds: dict[str, float] = {}
        self._scores: StepScores | None = None
        self._outcome: StepOutcome | None = None

    def resume_at(self, completed_steps: int) -> None:
        """Continue after the steps that a checkpoint brought."""
        self.completed_steps = completed_steps
        self.optimizer_steps = completed_steps * self.spec.optimizer_steps

    @property
    def scores(self) -> StepScores:
        """The step's scores."""
        if self._scores is None:
            raise ContractError("no scores for this step; expected the policy's get_logprobs to run before this")
        return self._scores

    @property
    def outcome(self) -> StepOutcome:
        """The step's advantages."""
        if self._outcome is None:
            raise ContractError(
                "no advantages for this step; expected the estimator to run between scoring and training"
            )
        return self._outcome

    def put_scores(self, scores: StepScores) -> None:
        """Begin a step; what an earlier step left is gone."""
        self._scores, self._outcome = scores, None

    def put_outcome(self, outcome: StepOutcome) -> None:
        """Keep the step's advantages for the loss and the telemetry."""
        self._outcome = outcome

    def finish(self) -> None:
        """End the step; its tensors are released."""
        self.completed_steps += 1
        self.optimizer_steps += self.spec.optimizer_steps
        self._scores = self._outcome = None
        self.seconds = {}
