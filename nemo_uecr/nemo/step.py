"""One step of NeMo-RL's loop: what policy and estimator share, since the loop hands neither scores nor advantages on.

Shape legend: B = responses, S = tokens of prompt and response (padded).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nemo_uecr.config.schema import RoutingConfig
from nemo_uecr.core.methods import Advantages, RunState
from nemo_uecr.data.problems import Problem, teacher_name
from nemo_uecr.errors import DataError
from nemo_uecr.nemo.recipe import Settings
from nemo_uecr.nemo.score_checks import ContractError
from nemo_uecr.nemo.worker_scoring import ScoreRequest
from nemo_uecr.steps.draws import run_state
from nemo_uecr.steps.metrics import Stopwatch
from nemo_uecr.steps.routing import PolicyScores, TeacherScores
from nemo_uecr.steps.step_record import ComparedTokens, StepRecord


class Routes:
    """Each row's teacher, by the column of its problem that ``routing`` names.

    Scoring sees token ids alone, so that the teacher of a prompt is noted when the data loader gives its row.
    """

    def __init__(self, routing: RoutingConfig | None, teachers: Collection[str]) -> None:
        self._routing, self._teachers = routing, tuple(teachers)
        self._by_prompt: dict[tuple[int, ...], str] = {}

    def learn(self, batch: Mapping[str, Any]) -> None:
        """Note the teacher of each prompt of the data loader's batch."""
        for turns, name in zip(batch["message_log"], self.of_rows(batch), strict=True):
            prompt = tuple(token for turn in turns for token in turn["token_ids"].tolist())
            if self._by_prompt.setdefault(prompt, name) != name:
                raise DataError(
                    f"two problems with one prompt are routed to the teachers {self._by_prompt[prompt]} and {name}; "
                    "expected one teacher per prompt"
                )

    def of_rows(self, batch: Mapping[str, Any]) -> list[str]:
        """The teacher of each row of NeMo-RL's batch, by the columns of its problem and its task's name."""
        tasks = batch.get("task_name") or [None] * len(batch["message_log"])
        columns = [
            {"task_name": task, **(about or {})} for task, about in zip(tasks, batch["extra_env_info"], strict=True)
        ]
        problems = [Problem(f"row {row}", "", "", each) for row, each in enumerate(columns)]
        return [teacher_name(problem, self._routing, self._teachers) for problem in problems]

    def of_prompts(self, token_ids_BS: Tensor, token_mask_BS: Tensor) -> list[str]:
        """The teacher of each row, whose prompt ends before its first sampled token."""
        prompt_B = token_mask_BS.bool().int().argmax(dim=1).tolist()
        prompts = [tuple(ids[:end]) for ids, end in zip(token_ids_BS.tolist(), prompt_B, strict=True)]
        if unknown := [row for row, prompt in enumerate(prompts) if prompt not in self._by_prompt]:
            raise ContractError(
                f"the prompt of row {unknown[0]} is not one that the data loader gave, so its teacher is unknown; "
                "an environment that changes prompts cannot have several teachers"
            )
        return [self._by_prompt[prompt] for prompt in prompts]


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
    mask_BS: Tensor  # the tokens that NeMo-RL had left to train on by then


@dataclass
class StepContext:
    """One run's shared state. The policy sets the scores, the estimator the outcome; after the step both are gone."""

    settings: Settings
    tokenizer: Any
    completed_steps: int = 0  # those of the checkpoint included
    state: Mapping[str, float] = field(default_factory=dict)  # what the method carried over
    save_state: Callable[[Mapping[str, float]], None] = lambda state: (
        None
    )  # puts it where NeMo-RL's checkpoints keep it
    routes: Routes | None = None  # where there are several teachers
    watch: Stopwatch = field(default_factory=Stopwatch)
    scores: StepScores = field(init=False)
    outcome: StepOutcome = field(init=False)

    @property
    def step(self) -> int:
        return self.completed_steps + 1

    @property
    def run_state(self) -> RunState:
        settings = self.settings
        return run_state(seed=settings.seed, steps=settings.steps, step=self.step, state=self.state)

    @property
    def student_request(self) -> ScoreRequest:
        """Both temperatures, and the entropy for telemetry, from one forward."""
        temperatures = {"rollout_logp": self.settings.temperature, "logp": 1.0}
        return ScoreRequest(temperatures, True, self.settings.vocabulary, self.settings.chunk_tokens)

    def teacher_request(self, columns: int) -> ScoreRequest:
        """At temperature 1 whatever the student's, from a teacher with so many columns; the entropy if it is read."""
        entropy = "teacher_entropy" in self.settings.method.reads
        whole = ScoreRequest({"logp": 1.0}, entropy, self.settings.vocabulary, self.settings.chunk_tokens)
        return whole.to_teacher(columns)

    def finish(self) -> None:
        """End the step; its tensors are released."""
        self.completed_steps += 1
        self.watch, self.state = Stopwatch(), self.outcome.advantages.state or {}
        self.save_state(self.state)
        del self.scores, self.outcome
