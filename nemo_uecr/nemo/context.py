"""What the policy scored and the estimator computed in one step, shared by both because NeMo-RL hands neither on.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.core.methods import METHODS, Method
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.nemo.contract import Scores
from nemo_uecr.nemo.two_temperatures import ScoreRequest


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
        problems: number of the problem of each response.
        handed_out_BS: the advantages as NeMo-RL got them.
    """

    batch: ScoredBatch
    settings: Settings
    advantages: Advantages
    residuals: Mapping[str, float]
    truncated_B: Tensor
    problems: Sequence[int]
    handed_out_BS: Tensor


@dataclass
class StepContext:
    """One run's shared state. The policy sets the scores, the estimator the outcome; after the step both are gone.

    Attributes:
        config: of the run.
        tokenizer: the student's.
        completed_steps: training steps, those of the checkpoint included.
        seconds: time of each part of the step.
        scores: the step's scores.
        outcome: the step's advantages.
    """

    config: NemoConfig
    tokenizer: Any
    completed_steps: int
    seconds: dict[str, float] = field(default_factory=dict)
    scores: StepScores = field(init=False)
    outcome: StepOutcome = field(init=False)

    @property
    def method(self) -> Method:
        """The method's definition."""
        return METHODS[self.config.method.name]

    @property
    def settings(self) -> Settings:
        """The method's scalars in this step."""
        seed = (self.config.run.seed * 1_000_003 + self.completed_steps) % 2**31
        return Settings(**self.config.method.core_settings(), step=self.completed_steps, seed=seed)

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

    @property
    def teacher_request(self) -> ScoreRequest:
        """Temperature 1 whatever the student samples at; the entropy if the method reads it."""
        entropy = "teacher_entropy" in self.method.scores
        return ScoreRequest((1.0,), entropy, self.config.student.vocabulary, self.config.scoring.chunk_tokens)

    def finish(self) -> None:
        """End the step; its tensors are released."""
        self.completed_steps += 1
        self.seconds = {}
        del self.scores, self.outcome
