"""Scores of a step's tokens by name, and each row's scores from its own teacher.

Shape legend: B = responses, T = tokens of the batch's layout (NeMo-RL's has the prompt, too), n = rows of one teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

AnyTeacher = TypeVar("AnyTeacher")


@dataclass(frozen=True)
class PolicyScores:
    """Scores by the student, or by its reference: float32 nats on the CPU."""

    rollout_logp_BT: Tensor  # log-probability at the rollout temperature T_r: for the ratio and the reference KL
    logp_BT: Tensor  # the same at temperature 1: for the gap
    entropy_BT: Tensor | None = None  # of the full vocabulary, at temperature 1


@dataclass(frozen=True)
class TeacherScores:
    """Scores by a teacher at temperature 1: float32 nats on the CPU."""

    logp_BT: Tensor
    entropy_BT: Tensor | None = None  # of the full vocabulary; None where no method reads it
    dropped_BT: Tensor | None = None  # probability on the columns that only the teacher has; None where it has none

    def select(self, rows_n: Tensor) -> TeacherScores:
        """Those of some rows."""
        columns = (self.logp_BT, self.entropy_BT, self.dropped_BT)
        return TeacherScores(*(None if each is None else each[rows_n] for each in columns))  # type: ignore[arg-type]


def score_by_turns(
    teachers: Mapping[str, AnyTeacher], names: Sequence[str], score: Callable[[AnyTeacher, Tensor], TeacherScores]
) -> TeacherScores:
    """Each row's scores by its own teacher, ``out[rows] = score(teacher, rows)``; NaN where one has no such score.

    Args:
        teachers: by name; names of one teacher share its turn.
        names: each row's teacher.
        score: one teacher's scores of its own rows [n].
    """
    turns = [(rows_n, score(teacher, rows_n)) for teacher, rows_n in by_teacher(teachers, names)]

    def joined(name: str) -> Tensor | None:
        out_BT = None
        for rows_n, own in turns:
            if (part_nT := getattr(own, name)) is not None:
                out_BT = torch.full((len(names), part_nT.shape[1]), torch.nan) if out_BT is None else out_BT
                out_BT[rows_n] = part_nT
        return out_BT

    return TeacherScores(*(joined(each.name) for each in fields(TeacherScores)))  # type: ignore[arg-type]


def by_teacher(teachers: Mapping[str, AnyTeacher], names: Sequence[str]) -> Iterator[tuple[AnyTeacher, Tensor]]:
    """Each teacher that has rows, once, with its rows."""
    for teacher in {id(each): each for each in teachers.values()}.values():
        rows = [row for row, name in enumerate(names) if teachers[name] is teacher]
        if rows:
            yield teacher, torch.tensor(rows)
