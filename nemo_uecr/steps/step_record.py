"""One step's rows with their rewards and scores: what the methods read, what is saved, what the metrics describe.

Shape legend: B = responses, T = tokens of the batch's layout, N = compared tokens, K = most likely token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from nemo_uecr.core.methods import Advantages, Method, RunState
from nemo_uecr.core.record import SCORE_FIELDS, ScoredBatch
from nemo_uecr.data.batch_file import OPTIONAL, REQUIRED, arithmetic, save_batch
from nemo_uecr.errors import ScoreError
from nemo_uecr.steps.routing import PolicyScores, TeacherScores

#: Tensors in nats; each is finite on every sampled token.
IN_NATS = ("old_logp_rollout", *SCORE_FIELDS, "ref_logp")


@dataclass(frozen=True)
class ComparedTokens:
    """The tokens at which student and teacher are compared, with the most likely ids of both, best first."""

    row_N: Tensor
    column_N: Tensor
    student_NK: Tensor
    teacher_NK: Tensor


@dataclass(frozen=True)
class StepRecord:
    """Everything that one step sampled, judged and scored."""

    step: int  # training step, from 1
    problems: Sequence[str | int]  # id of each response's problem
    task_reward_B: Tensor
    group_B: Tensor
    mask_BT: Tensor
    token_ids_BT: Tensor
    correct_B: Tensor
    truncated_B: Tensor
    student: PolicyScores
    run: RunState  # where the run is, for the methods that depend on it
    teacher: TeacherScores | None = None  # None when the method reads no teacher
    teachers: Sequence[str] = ()  # name of each response's teacher, where there are several
    # The initial student's log-probabilities: at T_r for the reference KL, at temperature 1 where the method reads them
    reference_rollout_logp_BT: Tensor | None = None
    initial_logp_BT: Tensor | None = None
    segments_BT: Tensor | None = None  # turn labels, None when the response is one turn
    compared: ComparedTokens | None = None

    @cached_property
    def sample_ids(self) -> tuple[str, ...]:
        return sample_ids(self.step, self.problems)

    @cached_property
    def scored(self) -> ScoredBatch:
        tensors = self._named()
        # The fields of `ScoredBatch` carry their shape in the name.
        named: dict[str, Any] = {field: tensors.get(name) for name, field in (REQUIRED | OPTIONAL).items()}
        return ScoredBatch(**named, sample_ids=self.sample_ids, run=self.run)

    def _named(self) -> dict[str, Tensor]:
        """Every tensor of the step by its public name, even those that `ScoredBatch` would refuse."""
        teacher = self.teacher
        tensors = {
            "task_reward": self.task_reward_B,
            "group": self.group_B,
            "mask": self.mask_BT,
            "token_ids": self.token_ids_BT,
            "old_logp": self.student.logp_BT,
            "old_logp_rollout": self.student.rollout_logp_BT,
            "ref_logp": self.reference_rollout_logp_BT,
            "teacher_logp": None if teacher is None else teacher.logp_BT,
            "teacher_entropy": None if teacher is None else teacher.entropy_BT,
            "initial_logp": self.initial_logp_BT,
            "student_entropy": self.student.entropy_BT,
            "segments": self.segments_BT,
        }
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the step by its public name; scores are 0 outside the sampled tokens."""
        tensors = self._named()
        return tensors | {name: tensors[name].masked_fill(~self.mask_BT, 0) for name in IN_NATS if name in tensors}

    def check_finite(self) -> None:
        """Refuse scores that are not finite, also where no method reads them."""
        tensors = self.tensors()
        for name in (name for name in IN_NATS if name in tensors):
            for row, token in (~tensors[name].isfinite()).nonzero()[:1].tolist():
                raise ScoreError(
                    f"{name} of response {row} ({self.sample_ids[row]}) at token {token} is "
                    f"{float(tensors[name][row, token])}; expected a finite number of nats. The model that scored it "
                    "gives logits that are not finite: check its weights"
                )

    def save(self, path: Path, method: Method, advantages: Advantages | None) -> None:
        """Write the tensors for replay and the credit map, the advantages among them where there are any."""
        tensors = self.tensors() | ({} if advantages is None else advantages.loss_tensors())
        save_batch(
            path, tensors, method=method, run=self.run, step=self.step, arithmetic=arithmetic(), teachers=self.teachers
        )


def sample_ids(step: int, problems: Sequence[object]) -> tuple[str, ...]:
    """Name of each response: step, problem and place in the batch."""
    return tuple(f"step {step}, problem {problem}, row {row}" for row, problem in enumerate(problems))
