"""Reading scored responses: what is there is read as written, what is damaged is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_uecr.audit.groups import teacher_rewards
from nemo_uecr.audit.store import asked_alike, joined_plan, read_scored, write_plan
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.responses.table import part_paths
from tests.audit.made import MODEL, PLAN, Made, write_scores

FOUR = [
    Made("a", 1.0, [0.5, -0.5, 7.0], checkpoint=10),
    Made("a", 0.0, [1.0], checkpoint=10),
    Made("b", 0.0, [-6.0, 2.0], checkpoint=20, truncated=True),
    Made("b", None, [0.25], checkpoint=20, cut=True),
]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, FOUR, part=3)
    found = scores
    assert found.ids == ("r0", "r1", "r2", "r3")
    assert found.checkpoints == [10, 20]
    assert found.problem_B.tolist() == [0, 0, 1, 1]
    assert found.group_B.tolist() == [0, 0, 1, 1]
    assert found.truncated_B.tolist() == [False, False, True, False]
    assert found.cut_B.tolist() == [False, False, False, True]
    assert found.scored_B.tolist() == [3, 1, 2, 1]
    tokens = scores.tokens("student", 20)  # of two parts
    assert (tokens.rows.tolist(), tokens.offsets.tolist()) == ([2, 3], [0, 2, 3])
    torch.testing.assert_close(tokens.teacher_logp - tokens.anchor_logp, torch.tensor([-6, 2, 0.25]))
    assert scores.column("problem") == ["a", "a", "b", "b"]


def test_problems_that_ask_the_same_are_one_cluster(tmp_path: Path) -> None:
    """A question that the data has under two names is one observation of the bootstrap; its groups stay apart."""
    repeated = [Made(name, 1.0, [0.5], prompt="1+1=?") for name in ("a", "again", "a", "again")]
    scores = write_scores(tmp_path, [*repeated, Made("other", 1.0, [0.5])])
    assert scores.problem_B.tolist() == [0, 0, 0, 0, 1]
    assert scores.group_B.tolist() == [0, 1, 0, 1, 2]
    assert scores.provenance()["problems"] == 2
    prompts = [[1], [2], [1], [2]]
    assert asked_alike(["a", "a", "b", "c"], prompts, [None] * 4).tolist() == [0, 0, 0, 1]  # a problem by its first
    assert asked_alike(["a", "a", "b", "c"], prompts, ["x", "x", "y", "y"]).tolist() == [0, 0, 1, 1]  # as it is told


def test_teacher_reward_by_hand(tmp_path: Path) -> None:
    infinite = Made("a", 1.0, [1.0, float("inf"), 3.0], checkpoint=10)  # left out and counted: it is no 5
    scores = write_scores(tmp_path, [*FOUR[:2], infinite, *FOUR[2:]], part=2)
    plain_B, nonfinite_B = teacher_rewards(scores, "student", clip=None)
    # the sums are 7, 1, 4, -4 and 0.25
    np.testing.assert_allclose(plain_B, [7 / 3, 1.0, 2.0, -2.0, 0.25], rtol=1e-6)
    assert nonfinite_B.tolist() == [0, 0, 1, 0, 0]
    # clipped, they are 5, 1, 4, -3 and 0.25
    clipped_B, _ = teacher_rewards(scores, "student", clip=5.0)
    np.testing.assert_allclose(clipped_B, [5 / 3, 1.0, 2.0, -1.5, 0.25], rtol=1e-6)
    # twice the gaps: (1 - 1 + 5) / 3, 2, (2 + 5) / 2, (-5 + 4) / 2, 0.5
    np.testing.assert_allclose(teacher_rewards(scores, "base", clip=5.0)[0], [5 / 3, 2.0, 3.5, -0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("damage", ["bit", "short", "copied"])
def test_a_damaged_part_is_not_read(tmp_path: Path, damage: str) -> None:
    """A disk's fault, a copy that stopped halfway, a part in another's place: wrong numbers, silently."""
    import pyarrow.parquet as parquet

    write_scores(tmp_path, [Made("a", reward, [0.1 * n for n in range(99)]) for reward in (0.0, 1.0)], part=1)
    first, second = part_paths(tmp_path)
    good, group = first.read_bytes(), parquet.ParquetFile(first).metadata.row_group(0)
    column = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema.startswith("teacher_logp"))
    place = column.data_page_offset + column.total_compressed_size // 2
    changed = {
        "bit": good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :],
        "short": good[:-100],
        "copied": second.read_bytes(),
    }
    first.write_bytes(changed[damage])
    with pytest.raises((DataError, OSError, ValueError)):
        read_scored(tmp_path).tokens("student", 0)


def test_scores_made_differently_do_not_mix(tmp_path: Path) -> None:
    write_scores(tmp_path, [Made("a", 1.0, [0.5], checkpoint=10)])
    student, other = {"students": {"10": MODEL}}, {"students": {"10": MODEL, "20": MODEL}}
    write_plan(tmp_path, joined_plan(tmp_path, PLAN | student, {"new"})[0])
    assert joined_plan(tmp_path, PLAN | other, {"newer"})[0]["students"] == other["students"]
    for changes in ({"dtype": "bfloat16"}, {"students": {"10": MODEL | {"sha256": "another"}}}):
        with pytest.raises(RunFolderError, match="|".join(changes)):
            joined_plan(tmp_path, PLAN | changes, {"new"})
