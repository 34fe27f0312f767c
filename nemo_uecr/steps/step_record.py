"""One step's rows with their rewards and scores: what the methods read, what is saved, what the metrics describe.

Shape legend: B = responses, T = tokens of the batch's layout, N = compared tokens, K = most likely token ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_uecr.core.methods import Advantages, Method, RunState
from nemo_uecr.core.record import SCORE_FIELDS, ScoredBatch
from nemo_uecr.errors import ScoreError
from nemo_uecr.responses.replay import SCORES, WITHOUT_DETAILS, about_step, advantage_columns, arithmetic
from nemo_uecr.responses.table import write_responses
from nemo_uecr.steps.routing import PolicyScores, TeacherScores

#: Tensors in nats; each is finite on every sampled token.
IN_NATS = ("old_logp_rollout", "generator_logp_rollout", *SCORE_FIELDS, "ref_logp")


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
    teacher_rank_BT: Tensor | None = None  # of each token among its teacher's logits; None where that is not read off
    segments_BT: Tensor | None = None  # turn labels, None when the response is one turn
    compared: ComparedTokens | None = None
    generator_logp_BT: Tensor | None = None  # log mu of the policy that sampled, at T_r, as it was recorded at the draw
    lag: int | None = 0  # updates by which mu is older than the policy that the step updates; None: not told

    @cached_property
    def sample_ids(self) -> tuple[str, ...]:
        return sample_ids(self.step, self.problems)

    @cached_property
    def scored(self) -> ScoredBatch:
        scores: dict[str, Any] = {field: self.tokens.get(name) for name, field in SCORES.items()}
        return ScoredBatch(
            task_reward_B=self.task_reward_B, group_B=self.group_B, mask_BT=self.mask_BT, sample_ids=self.sample_ids,
            run=self.run, **scores,
        )  # fmt: skip

    @cached_property
    def tokens(self) -> dict[str, Tensor]:
        """Every token column of the step, even one that `ScoredBatch` would refuse."""
        teacher = self.teacher
        tensors = {
            "token_ids": self.token_ids_BT,
            "sampled": self.mask_BT,
            "turn": self.segments_BT,
            "old_logp": self.student.logp_BT,
            "old_logp_rollout": self.student.rollout_logp_BT,
            "generator_logp_rollout": self.generator_logp_BT,
            "ref_logp": self.reference_rollout_logp_BT,
            "initial_logp": self.initial_logp_BT,
            "student_entropy": self.student.entropy_BT,
            "teacher_logp": None if teacher is None else teacher.logp_BT,
            "teacher_entropy": None if teacher is None else teacher.entropy_BT,
            "teacher_rank": self.teacher_rank_BT,
        }
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @property
    def rows(self) -> dict[str, Any]:
        """What the step knows of each response, by column."""
        groups, before = self.group_B.tolist(), Counter[int]()
        samples = []
        for group in groups:
            samples.append(before[group])
            before[group] += 1
        return {
            "id": self.sample_ids,
            "checkpoint": [None if self.lag is None else self.step - 1 - self.lag] * len(groups),
            "problem": list(map(str, self.problems)),
            "group": list(map(str, groups)),
            "sample": samples,
            "correct": self.correct_B.tolist(),
            "reward": self.task_reward_B.numpy(),
            "truncated": self.truncated_B.tolist(),
        } | ({"teacher": self.teachers} if self.teachers else {})

    def check_finite(self) -> None:
        """Refuse scores that are not finite, also where no method reads them."""
        for name in (name for name in IN_NATS if name in self.tokens):
            score_BT = self.tokens[name]
            for row, token in (~score_BT.isfinite() & self.mask_BT).nonzero()[:1].tolist():
                raise ScoreError(
                    f"{name} of response {row} ({self.sample_ids[row]}) at token {token} is "
                    f"{float(score_BT[row, token])}; expected a finite number of nats. The model that scored it gives "
                    "logits that are not finite: check its weights"
                )

    def save(
        self,
        path: Path,
        method: Method,
        advantages: Advantages | None,
        *,
        rows: Mapping[str, Any],
        tokenizer: Any,
        teachers: Mapping[str, Any],
        prompts: bool,
    ) -> None:
        """Write the step's table, with the advantages where there are any.

        ``rows`` is what the back end knows of the responses besides, ``teachers`` where each teacher's scores come
        from; ``prompts`` says whether the layout has the prompts.
        """
        made_B, made_BT = ({}, {}) if advantages is None else advantage_columns(advantages, WITHOUT_DETAILS)
        write_responses(
            path,
            {**self.rows, **rows, **made_B},
            self.tokens | made_BT,
            about=about_step(method, self.run, step=self.step) | {"arithmetic": arithmetic(), "teachers": teachers},
            word=lambda token: str(tokenizer.decode([token])),
            prompts=prompts,
        )


def sample_ids(step: int, problems: Sequence[object]) -> tuple[str, ...]:
    """Name of each response: step, problem and place in the batch."""
    return tuple(f"step {step}, problem {problem}, row {row}" for row, problem in enumerate(problems))


def turn_begins(mask_BT: Tensor) -> Tensor:
    """[B, T] the first sampled token, and those that follow tokens that were observed."""
    begins_BT = mask_BT & ~mask_BT.roll(1, dims=1)
    begins_BT[:, 0] = mask_BT[:, 0]
    return begins_BT


def turn_labels(ids_BT: Tensor, mask_BT: Tensor, method: Method, tokenizer: Any) -> Tensor | None:
    """[B, T] turn of each sampled token, from 0; None where every response is one turn.

    A turn begins after tokens that were observed, or, for a method with a ``turn_separator``, after a token whose text
    contains it.
    """
    separator = method.settings().get("turn_separator")
    if separator is None:
        turn_BT = (turn_begins(mask_BT).long().cumsum(dim=1) - 1).masked_fill(~mask_BT, 0)
        return turn_BT if turn_BT.any() else None
    ends = [token for token in set(ids_BT[mask_BT].tolist()) if separator in tokenizer.decode([token])]
    end_BT = mask_BT & torch.isin(ids_BT, torch.tensor(ends, dtype=ids_BT.dtype))
    turn_BT = end_BT.long().cumsum(dim=1) - end_BT.long()  # the separator itself still belongs to the turn it ends
    return turn_BT.masked_fill(~mask_BT, 0)
