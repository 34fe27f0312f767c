"""Each row has the scores of its own teacher, which takes one turn whatever its names."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_uecr.steps.routing import TeacherScores, score_by_turns


def test_each_row_has_the_scores_of_its_own_teacher() -> None:
    turns = []

    def score(teacher: list[str], rows_n: Tensor) -> TeacherScores:
        turns.append((teacher[0], rows_n.tolist()))
        own_nT = rows_n.unsqueeze(1) + torch.tensor([[0.25, 0.5]])
        return TeacherScores(own_nT, dropped_BT=-own_nT if teacher == ["wide"] else None)

    wide, plain = ["wide"], ["plain"]
    teachers = {"a": wide, "b": plain, "c": wide, "d": ["idle"]}
    found = score_by_turns(teachers, ["b", "c", "a", "b"], score)
    assert turns == [("wide", [1, 2]), ("plain", [0, 3])]
    assert found.logp_BT.tolist() == [[row + 0.25, row + 0.5] for row in range(4)]
    assert found.entropy_BT is None
    assert found.dropped_BT is not None
    assert found.dropped_BT.isnan().all(dim=1).tolist() == [True, False, False, True]
    assert torch.equal(found.dropped_BT[1:3], -found.logp_BT[1:3])
