"""Reading scored responses: what is there is read as written, what is damaged is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_uecr.audit.groups import teacher_rewards, token_table
from nemo_uecr.audit.store import joined_plan, part_paths, read_scores
from nemo_uecr.errors import DataError, RunFolderError
from tests.audit.made import MODEL, PLAN, Made, write_scores

pytest.importorskip("pyarrow", reason="scores are read with pyarrow (extra 'data')")

FOUR = [
    Made("a", 1.0, [0.5, -0.5, 7.0], checkpoint=10),
    Made("a", 0.0, [1.0], checkpoint=10),
    Made("b", 0.0, [-6.0, 2.0], checkpoint=20, truncated=True),
    Made("b", None, [0.25], checkpoint=20, cut=True),
]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, FOUR, part=3)
    found = scores.responses
    assert found.ids == ("r0", "r1", "r2", "r3")
    assert found.checkpoints == [10, 20]
    assert found.problem_B.tolist() == [0, 0, 1, 1]
    assert found.group_B.tolist() == [0, 0, 1, 1]
    assert found.truncated_B.tolist() == [False, False, True, False]
    assert found.cut_B.tolist() == [False, False, False, True]
    assert scores.column("sampled_tokens") == [3, 1, 2, 6]
    parts = list(scores.tokens("student"))
    assert [part.rows for part in parts] == [slice(0, 3), slice(3, 4)]
    torch.testing.assert_close(parts[0].teacher_logp - parts[0].anchor_logp, torch.tensor([0.5, -0.5, 7, 1, -6, 2]))
    assert scores.column("question") == ["question a", "question a", "question b", "question b"]


def test_teacher_reward_by_hand(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, FOUR, part=2)
    plain = teacher_rewards(scores, "student", clip=None)
    # the sums are 7, 1, -4 and 0.25
    np.testing.assert_allclose(plain.reward_B, [7 / 3, 1.0, -2.0, 0.25], rtol=1e-6)
    clipped = teacher_rewards(scores, "student", clip=5.0)
    # clipped, they are 5, 1, -3 and 0.25
    np.testing.assert_allclose(clipped.reward_B, [5 / 3, 1.0, -1.5, 0.25], rtol=1e-6)
    base = teacher_rewards(scores, "base", clip=5.0)
    # twice the gaps: (1 - 1 + 5) / 3, 2, (-5 + 4) / 2, 0.5
    np.testing.assert_allclose(base.reward_B, [5 / 3, 2.0, -0.5, 0.5], rtol=1e-6)


def test_a_token_without_a_finite_gap_is_left_out_and_counted(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, [Made("a", 1.0, [1.0, float("inf"), 3.0]), Made("a", 0.0, [1.0])])
    found = teacher_rewards(scores, "student", clip=5.0)
    assert found.nonfinite_B.tolist() == [1, 0]
    np.testing.assert_allclose(found.reward_B, [2.0, 1.0])  # (1 + 3) / 2: the infinite gap is no 5


@pytest.mark.parametrize("damage", ["bit", "swapped"])
def test_tokens_that_are_not_those_of_their_rows(tmp_path: Path, damage: str) -> None:
    """A disk's fault, two parts exchanged: each would give wrong numbers silently."""
    write_scores(tmp_path, FOUR, part=2)
    first, second = (path.with_suffix(".safetensors") for path in part_paths(tmp_path))
    good = first.read_bytes()
    changed = {"bit": good[:-1] + bytes([good[-1] ^ 1]), "swapped": second.read_bytes()}
    first.write_bytes(changed[damage])
    with pytest.raises(DataError, match=r"part-000000\.safetensors does not belong to part-000000\.parquet"):
        list(read_scores(tmp_path).tokens("student"))


def test_scores_made_differently_do_not_mix(tmp_path: Path) -> None:
    write_scores(tmp_path, [Made("a", 1.0, [0.5], checkpoint=10)])
    student = {"students": {"10": MODEL}}
    assert joined_plan(tmp_path, PLAN | student, {"new"})[0]["students"] == {"10": MODEL}
    with pytest.raises(RunFolderError, match="dtype='float32', this call has 'bfloat16'"):
        joined_plan(tmp_path, PLAN | {"dtype": "bfloat16"}, {"new"})


def test_groups_are_whole_however_parts_cut_them(tmp_path: Path) -> None:
    made = [Made(name, reward, [0.1, 0.2]) for name, reward in (("a", 1.0), ("b", 0.0), ("a", 0.0), ("b", 0.0))]
    table = token_table(write_scores(tmp_path, made, part=3), "student", 0)
    batches = dict(zip("ab", table.group_batches(), strict=True))
    rows, batch = batches["a"]
    assert rows.tolist() == [0, 2]
    assert batch.task_reward_B.tolist() == [1.0, 0.0]
    assert batch.offsets is not None
    assert batch.offsets.tolist() == [0, 2, 4]
    assert batch.old_logp_BT.dtype == torch.float64
    assert batches["b"][0].tolist() == [1, 3]
