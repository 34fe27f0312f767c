"""What a run asks of the adapter, in one frozen record that every part reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nemo_uecr.core.methods import METHODS, Method
from nemo_uecr.core.records import Settings
from nemo_uecr.nemo.request import ScoreRequest

#: The paper's form, or NeMo-RL's own.
Form = Literal["paper", "nemo_rl"]


@dataclass(frozen=True)
class Conventions:
    """Where NeMo-RL departs from the paper: which form is used.

    Attributes:
        kl: ``paper`` is the plain k3 gradient without clamps; ``nemo_rl`` its own estimator.
        grouping: ``paper`` groups by the prompt's place in the step; ``nemo_rl`` by equal prompt token rows.
        filters: ``paper`` keeps top-p and top-k out of every training log-probability; ``nemo_rl`` applies them.
    """

    kl: Form
    grouping: Form
    filters: Form


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
    conventions: Conventions
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
