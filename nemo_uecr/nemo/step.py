"""One step of NeMo-RL's loop: what policy and estimator share, since the loop hands neither scores nor advantages on.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.core.methods import Advantages, RunState
from nemo_uecr.nemo.score_checks import ContractError
from nemo_uecr.nemo.worker_scoring import ScoreRequest
from nemo_uecr.steps.draws import run_state
from nemo_uecr.steps.metrics import Stopwatch
from nemo_uecr.steps.routing import PolicyScores, TeacherScores
from nemo_uecr.steps.step_record import ComparedTokens, StepRecord


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
                "prompts rendered as the section `data` sets it"
            )
        return [self.by_prompt[prompt] for prompt in prompts]


@dataclass(frozen=True)
class StepScores:
    """All scores of a step with the columns of the batch they were computed from."""

    student: PolicyScores
    teacher: TeacherScores | None  # None when the method reads no teacher
    token_mask_BS: Tensor
    sample_mask_B: Tensor
    token_ids_BS: Tensor
    teachers: Sequence[str] = ()  # name of each row's teacher, where there are several
    compared: ComparedTokens | None = None


@dataclass(frozen=True)
class StepOutcome:
    """What the estimator made of a step's scores."""

    record: StepRecord
    advantages: Advantages
    residuals: Mapping[str, float]  # worst of each identity
    handed_out_BS: Tensor  # the advantages as NeMo-RL got them


@dataclass
class StepContext:
    """One run's shared state. The policy sets the scores, the estimator the outcome; after the step both are gone."""

    config: NemoConfig
    tokenizer: Any
    completed_steps: int  # those of the checkpoint included
    environment: Any = None  # what gives the rewards
    routes: Routes | None = None  # where there are several teachers
    watch: Stopwatch = field(default_factory=Stopwatch)
    state: Mapping[str, float] = field(default_factory=dict)  # what the method carried over
    scores: StepScores = field(init=False)
    outcome: StepOutcome = field(init=False)

    @property
    def step(self) -> int:
        return self.completed_steps + 1

    @property
    def run_state(self) -> RunState:
        return run_state(self.config, step=self.step, state=self.state)

    @property
    def responses(self) -> int:
        return self.config.rollout.prompts_per_step * self.config.rollout.responses_per_prompt

    @property
    def optimizer_steps(self) -> int:
        return self.responses // self.config.train.minibatch_responses

    @property
    def student_request(self) -> ScoreRequest:
        """Both temperatures, and the entropy for telemetry, from one forward."""
        temperatures = {"rollout_logp": self.config.rollout.temperature, "logp": 1.0}
        return ScoreRequest(temperatures, True, self.config.student.vocabulary, self.config.scoring.chunk_tokens)

    def teacher_request(self, columns: int) -> ScoreRequest:
        """At temperature 1 whatever the student's, from a teacher with so many columns; the entropy if it is read."""
        entropy = "teacher_entropy" in self.config.method.reads
        whole = ScoreRequest({"logp": 1.0}, entropy, self.config.student.vocabulary, self.config.scoring.chunk_tokens)
        return whole.to_teacher(columns)

    def finish(self) -> None:
        """End the step; its tensors are released."""
        self.completed_steps += 1
        self.watch, self.state = Stopwatch(), self.outcome.advantages.state or {}
        del self.scores, self.outcome
