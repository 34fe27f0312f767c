"""What a run asks of every part of the back end, and what the parts of one step share: NeMo-RL hands neither on.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from nemo_uecr.config.nemo_schema import ConventionsConfig, NemoConfig
from nemo_uecr.core.methods import METHODS, Method
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.nemo.contract import Scores
from nemo_uecr.nemo.two_temperatures import ScoreRequest


@dataclass(frozen=True)
class RunSpec:
    """The method, the batch and the loss of a run.

    Attributes:
        method_name: key of the registry.
        settings: the method's scalars; step and seed are filled in for each step.
        seed: the run's seed.
        prompts_per_step: P.
        responses_per_prompt: G.
        minibatch_responses: responses an optimizer step.
        temperature: T_r.
        clip_low: lower clip bound.
        clip_high: upper clip bound.
        kl_coef: beta_ref.
        vocabulary: real vocabulary columns of student and teacher.
        chunk_tokens: tokens scored at once.
        overlong_filter: whether truncated responses are left out of the loss.
        turn_separator: token text that ends a turn (``atod``).
        scoring_noise: below this standard deviation a group is counted in telemetry.
        tolerances: largest allowed residual by identity, and ``first_ratio``.
        conventions: the paper's forms or NeMo-RL's.
        save_every: steps between saved batches; 0: none.
        folder: run folder.
    """

    method_name: str
    settings: Settings
    seed: int
    prompts_per_step: int
    responses_per_prompt: int
    minibatch_responses: int
    temperature: float
    clip_low: float
    clip_high: float
    kl_coef: float
    vocabulary: int
    chunk_tokens: int
    overlong_filter: bool
    turn_separator: str | None
    scoring_noise: float
    tolerances: dict[str, float]
    conventions: ConventionsConfig
    save_every: int
    folder: str

    @property
    def method(self) -> Method:
        """The method's definition."""
        return METHODS[self.method_name]

    @property
    def responses(self) -> int:
        """B."""
        return self.prompts_per_step * self.responses_per_prompt

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps a batch."""
        return self.responses // self.minibatch_responses

    def settings_of(self, completed: int) -> Settings:
        """The method's scalars after ``completed`` training steps."""
        return replace(self.settings, step=completed, seed=(self.seed * 1_000_003 + completed) % 2**31)

    def student_request(self) -> ScoreRequest:
        """Both temperatures, and the entropy for telemetry, from one forward."""
        return ScoreRequest((self.temperature, 1.0), True, self.vocabulary, self.chunk_tokens)

    def teacher_request(self) -> ScoreRequest:
        """Temperature 1 whatever the student samples at; the entropy if the method reads it."""
        return ScoreRequest((1.0,), "teacher_entropy" in self.method.scores, self.vocabulary, self.chunk_tokens)


def run_spec(config: NemoConfig) -> RunSpec:
    """What a configuration asks for."""
    method, rollout, loss = config.method, config.rollout, config.loss
    return RunSpec(
        method_name=method.name,
        settings=Settings(**method.core_settings()),
        seed=config.run.seed,
        prompts_per_step=rollout.prompts_per_step,
        responses_per_prompt=rollout.responses_per_prompt,
        minibatch_responses=config.train.minibatch_responses,
        temperature=rollout.temperature,
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        kl_coef=loss.reference_kl,
        vocabulary=config.student.vocabulary,
        chunk_tokens=config.scoring.chunk_tokens,
        overlong_filter=rollout.overlong_filter,
        turn_separator=method.turn_separator,
        scoring_noise=method.scoring_noise,
        tolerances=config.tolerances.model_dump(),
        conventions=config.conventions,
        save_every=config.telemetry.save_batch_every,
        folder=config.run.folder,
    )


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


@dataclass
class StepContext:
    """One run's shared state. The policy sets the scores, the estimator the outcome; after the step both are gone.

    Attributes:
        spec: what the run asks for.
        tokenizer: the student's.
        completed_steps: training steps, those of the checkpoint included.
        seconds: time of each part of the step.
        scores: the step's scores.
        outcome: the step's advantages.
    """

    spec: RunSpec
    tokenizer: Any
    completed_steps: int
    seconds: dict[str, float] = field(default_factory=dict)
    scores: StepScores = field(init=False)
    outcome: StepOutcome = field(init=False)

    def finish(self) -> None:
        """End the step; its tensors are released."""
        self.completed_steps += 1
        self.seconds = {}
        del self.scores, self.outcome
