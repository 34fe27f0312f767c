"""Reading scored responses: what is there is read as written, what is damaged is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_uecr.audit.parts import keep_plan, next_number, record_files
from nemo_uecr.audit.rollouts import read_scores, read_unfinished
from nemo_uecr.audit.schema import PLAN, row_path, token_path
from nemo_uecr.audit.teacher_reward import teacher_rewards
from nemo_uecr.audit.token_table import token_table
from nemo_uecr.errors import DataError, RunFolderError, ScoreError
from tests.audit.made import MODEL, Made, write_scores

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


def test_a_response_without_any_finite_gap_is_refused(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, [Made("a", 1.0, [float("nan")]), Made("a", 0.0, [1.0])])
    with pytest.raises(ScoreError, match="'r0' has no token with a finite gap"):
        teacher_rewards(scores, "student", clip=None)


def test_an_anchor_that_was_not_scored(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no scores of anchor 'other'.*--anchor other=MODEL"):
        list(write_scores(tmp_path, FOUR).tokens("other"))


def test_a_response_that_was_never_verified_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'r3'"):
        write_scores(tmp_path, FOUR).responses.verified_rewards()


def test_a_part_that_a_kill_left_without_rows_does_not_count(tmp_path: Path) -> None:
    write_scores(tmp_path, FOUR, part=2)
    row_path(tmp_path, 1).unlink()
    assert read_unfinished(tmp_path).responses.ids == ("r0", "r1")
    assert next_number(tmp_path) == 1


def test_unfinished_scores_are_no_audit_s_business(tmp_path: Path) -> None:
    """Killed between the tokens and the rows of the last part, or between two parts."""
    write_scores(tmp_path, FOUR, part=2)
    plan = json.loads((tmp_path / PLAN).read_text())
    (tmp_path / PLAN).write_text(json.dumps({**plan, "responses": 6}))
    with pytest.raises(DataError, match=r"holds 4 of 6 responses: .* interrupted; finish with the same command"):
        read_scores(tmp_path)
    assert len(read_unfinished(tmp_path).responses.ids) == 4
    row_path(tmp_path, 1).unlink()
    with pytest.raises(DataError, match=r"part-000001\.parquet is gone.* or finish with the same `nemo-uecr score`"):
        read_scores(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no scores\.json"):
        read_scores(tmp_path)
    write_scores(tmp_path, FOUR, part=2)
    good = token_path(tmp_path, 0).read_bytes()
    token_path(tmp_path, 0).write_bytes(good[:-1] + bytes([good[-1] ^ 1]))  # one bit of a log-probability
    with pytest.raises(DataError, match=r"part-000000\.safetensors is not the file that was written"):
        list(read_scores(tmp_path).tokens("student"))
    token_path(tmp_path, 0).write_bytes(b"nothing")
    accept(tmp_path, token_path(tmp_path, 0))
    with pytest.raises(DataError, match="not a readable safetensors file"):
        list(read_scores(tmp_path).tokens("student"))
    row_path(tmp_path, 1).write_bytes(row_path(tmp_path, 0).read_bytes())
    with pytest.raises(DataError, match=r"part-000001\.parquet is not the file that was written"):
        read_scores(tmp_path)
    accept(tmp_path, row_path(tmp_path, 1))
    with pytest.raises(DataError, match="'r0' stands twice"):
        read_scores(tmp_path)
    row_path(tmp_path, 1).write_bytes(b"nothing")
    accept(tmp_path, row_path(tmp_path, 1))
    with pytest.raises(DataError, match="cannot be read"):
        read_scores(tmp_path)
    token_path(tmp_path, 1).unlink()
    with pytest.raises(DataError, match="part-000001"):
        read_scores(tmp_path)
    (tmp_path / PLAN).write_text('{"format": "other"}')
    with pytest.raises(DataError, match="format 'other'"):
        read_scores(tmp_path)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("teacher_logp", torch.float8_e4m3fn), ("teacher_entropy", torch.uint64), ("anchor.student", torch.complex64),
        ("teacher_logp", torch.bfloat16), ("offsets", torch.float32), ("token_ids", torch.float16),
        ("teacher_top1", torch.int64),
    ],
)  # fmt: skip
def test_a_tensor_of_another_type_is_named(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    write_scores(tmp_path, FOUR, part=2)
    path = token_path(tmp_path, 0)
    tensors = load_file(path)
    save_file(tensors | {name: tensors[name].to(dtype)}, path)
    accept(tmp_path, path)
    shown = "anchor_logp" if name == "anchor.student" else name
    with pytest.raises(DataError, match=rf"part-000000\.safetensors: {shown} is {dtype}; expected torch\."):
        list(read_scores(tmp_path).tokens("student"))


def accept(folder: Path, path: Path) -> None:
    """List a file as it now is, so that the checks behind the hash are reached."""
    record_files(folder, {path: path.read_bytes()})


@pytest.mark.parametrize("number", [0, 1])
def test_a_part_that_is_gone_is_named(tmp_path: Path, number: int) -> None:
    write_scores(tmp_path, FOUR, part=2)
    row_path(tmp_path, number).unlink()
    token_path(tmp_path, number).unlink()
    with pytest.raises(DataError, match=f"part-00000{number}.safetensors is gone"):
        read_scores(tmp_path)


def test_only_the_last_part_may_lack_its_rows(tmp_path: Path) -> None:
    write_scores(tmp_path, FOUR, part=2)
    row_path(tmp_path, 0).unlink()
    with pytest.raises(DataError, match=r"part-000000\.parquet is gone"):
        read_scores(tmp_path)


Tensors = dict[str, torch.Tensor]


def moved(tensors: Tensors) -> None:
    tensors["offsets"] += 1


def descending(tensors: Tensors) -> None:
    tensors["offsets"] = torch.tensor([0, 5, 4])


def recounted(tensors: Tensors) -> None:
    tensors["offsets"] = torch.tensor([0, 2, 4])


def shortened(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name][:-1].clone()

    return change


def raised(name: str, value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name][1] = value

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (moved, "offsets do not ascend from 0"),
        (descending, "offsets do not ascend from 0"),
        (recounted, "token counts of its parquet file"),
        *[
            (shortened(name), rf"{name.replace('anchor.student', 'anchor_logp')} has shape \(3,\); expected \(4,\)")
            for name in ("token_ids", "teacher_logp", "teacher_entropy", "teacher_top1", "anchor.student")
        ],
        (raised("teacher_logp", 0.5), r"teacher_logp rises to 0\.5 nats; expected log-probabilities <= 0"),
        (raised("anchor.student", 0.5), r"anchor_logp rises to 0\.5 nats"),
        (raised("teacher_entropy", -0.5), r"teacher_entropy falls to -0\.5 nats"),
    ],
)
def test_tensors_that_cannot_be_scores_are_refused(
    tmp_path: Path, change: Callable[[Tensors], None], complaint: str
) -> None:
    write_scores(tmp_path, FOUR, part=2)
    path = token_path(tmp_path, 0)
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    accept(tmp_path, path)
    with pytest.raises((DataError, ScoreError), match=complaint):
        list(read_scores(tmp_path).tokens("student"))


@pytest.mark.parametrize("content", ["{bad", "[]", '{"format": "nemo_uecr.scores/1"}'])
def test_a_damaged_plan_is_named_by_reader_and_writer(tmp_path: Path, content: str) -> None:
    write_scores(tmp_path, FOUR)
    (tmp_path / PLAN).write_text(content)
    for use in (read_scores, lambda folder: keep_plan(folder, {"students": {}, "sources": {}})):
        with pytest.raises(DataError, match=r"scores\.json"):
            use(tmp_path)


@pytest.mark.parametrize("key", ["teacher", "anchors", "students", "sources", "parts"])
def test_a_plan_without_a_key_is_named(tmp_path: Path, key: str) -> None:
    write_scores(tmp_path, FOUR)
    plan = json.loads((tmp_path / PLAN).read_text())
    del plan[key]
    (tmp_path / PLAN).write_text(json.dumps(plan))
    with pytest.raises(DataError, match=f"has no '{key}'"):
        read_scores(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("teacher", "T", "'teacher' is a str; expected an object"),
        ("teacher", {"sha256": None}, "'teacher' has no name; expected the model that scored"),
        ("anchors", [], "'anchors' is a list; expected an object"),
    ],
)
def test_a_plan_with_something_else_is_named(tmp_path: Path, key: str, value: object, complaint: str) -> None:
    write_scores(tmp_path, FOUR)
    plan = json.loads((tmp_path / PLAN).read_text())
    (tmp_path / PLAN).write_text(json.dumps({**plan, key: value}))
    with pytest.raises(DataError, match=complaint):
        read_scores(tmp_path)


def test_a_file_without_its_hash_is_refused(tmp_path: Path) -> None:
    write_scores(tmp_path, FOUR)
    plan = json.loads((tmp_path / PLAN).read_text())
    plan["parts"] = {}
    (tmp_path / PLAN).write_text(json.dumps(plan))
    with pytest.raises(DataError, match=r"no sha256 of part-000000\.parquet"):
        read_scores(tmp_path)


def test_a_column_of_another_type_is_named(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    write_scores(tmp_path, FOUR)
    path = row_path(tmp_path, 0)
    table = parquet.read_table(path)
    place = table.column_names.index("checkpoint")
    parquet.write_table(table.set_column(place, "checkpoint", table["checkpoint"].cast(pyarrow.string())), path)
    accept(tmp_path, path)
    with pytest.raises(DataError, match="column 'checkpoint' is string; expected int64"):
        read_scores(tmp_path)


def test_scores_made_differently_do_not_mix(tmp_path: Path) -> None:
    write_scores(tmp_path, FOUR)
    plan = {
        "teacher": MODEL, "anchors": {"student": "made", "base": MODEL}, "students": {"10": MODEL}, "sources": {},
        "dtype": "float32", "temperature": 1.0, "max_length": None, "engine": "made",
    }  # fmt: skip
    assert keep_plan(tmp_path, plan)["students"] == {"10": MODEL}
    with pytest.raises(RunFolderError, match="dtype='float32', this call has 'bfloat16'"):
        keep_plan(tmp_path, {**plan, "dtype": "bfloat16"})
    with pytest.raises(RunFolderError, match="10 = "):
        keep_plan(tmp_path, {**plan, "students": {"10": {"name": "made", "sha256": "0"}}})


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
