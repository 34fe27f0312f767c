"""Paired comparison and selection, on hand values."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.compare import compare
from nemo_uecr.evaluation.samples import Sample, read_samples
from nemo_uecr.evaluation.select import select


def sample_file(path: Path, rewards: dict[str, list[list[int]]]) -> Path:
    lines = [
        json.dumps(
            asdict(Sample(name, f"p{row}", place, "q", "a", "r", None, "correct" if reward else "wrong", 3, False))
        )
        for name, rows in rewards.items()
        for row, values in enumerate(rows)
        for place, reward in enumerate(values)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_files_of_two_checkpoints(tmp_path: Path) -> None:
    first = sample_file(tmp_path / "a.jsonl", {"x": [[1, 0], [0, 0]]})
    second = sample_file(tmp_path / "b.jsonl", {"x": [[1, 1], [0, 1]]})
    found = compare(first, second, seed=0)
    assert found["x"].difference == pytest.approx(0.5)  # (1/2 + 1/2)/2
    assert found["average"] == found["x"]


def test_other_problems_are_refused(tmp_path: Path) -> None:
    first = sample_file(tmp_path / "a.jsonl", {"x": [[1], [0]]})
    second = sample_file(tmp_path / "b.jsonl", {"x": [[1]]})
    with pytest.raises(DataError, match="other problems"):
        compare(first, second, seed=0)


def result(avg: float, low: float, other: float) -> dict[str, object]:
    return {"sets": {"x": {"avg": avg, "low": low}, "y": {"avg": other, "low": other}}}


def test_a_score_at_the_bound_is_near_the_best() -> None:
    # The best is 0.5 with the interval from 0.25; 0.25 is not below it.
    assert select([result(0.25, 0.1, 0.1), result(0.5, 0.25, 0.1)], "earliest-near-best", ["x"]) == 0


def test_selection_rules() -> None:
    results = [result(0.2, 0.1, 0.9), result(0.4, 0.3, 0.1), result(0.5, 0.35, 0.1), result(0.5, 0.4, 0.0)]
    assert select(results, "best", ["x"]) == 2  # 0.5 twice: the earlier one
    assert select(results, "earliest-near-best", ["x"]) == 1  # 0.4 >= 0.35
    assert select(results, "best", []) == 0  # (0.2 + 0.9)/2
    assert select(results, "last", []) == 3
    with pytest.raises(DataError, match="earliest-near-best"):
        select(results, "better", [])
    with pytest.raises(DataError, match="have x, y"):
        select(results, "best", ["z"])


def test_other_questions_answers_or_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    first = sample_file(tmp_path / "a.jsonl", {"x": [[1, 0], [0, 1]]})
    for key, value in (("question", "another"), ("answer", "7")):
        lines = [json.loads(line) | {key: value} for line in first.read_text(encoding="utf-8").splitlines()]
        other = tmp_path / "b.jsonl"
        other.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        with pytest.raises(DataError, match=f"another {key} for problem 'p0' of x: .* and '{value}'"):
            compare(first, other, seed=0)
    fewer = sample_file(tmp_path / "c.jsonl", {"x": [[1, 0], [0]]})
    with pytest.raises(DataError, match="2 and 1 samples of problem 'p1'"):
        compare(first, fewer, seed=0)


def evaluation(folder: Path, k: int, rewards: dict[str, list[list[int]]], problems: int) -> Path:
    """An evaluation folder whose plan has so many problems of each benchmark."""
    folder.mkdir()
    sample_file(folder / "samples.jsonl", rewards)
    sets = {name: {"problems": problems, "row_set": "5f", "revision": None} for name in rewards}
    (folder / "plan.json").write_text(json.dumps({"samples": k, "seed": 1, "benchmarks": sets}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("rewards", "problems", "numbers"),
    [
        ([[1, 0], [0, 1]], 3, "4 of 6"),  # one problem of three is not there
        ([[1, 0], [0]], 2, "3 of 4"),  # one sample of two is not there
    ],
)
def test_an_unfinished_evaluation_is_refused(
    rewards: list[list[int]], problems: int, numbers: str, tmp_path: Path
) -> None:
    first, second = (evaluation(tmp_path / name, 2, {"x": rewards}, problems) for name in "ab")
    message = f"got {numbers} samples, 2 for each of the plan's problems; finish the evaluation with the command"
    with pytest.raises(DataError, match=message):
        compare(first, second, seed=0)
    with pytest.raises(DataError, match=message):  # against a file of samples too
        compare(second / "samples.jsonl", first, seed=0)


def test_a_finished_evaluation_is_compared(tmp_path: Path) -> None:
    first, second = (
        evaluation(tmp_path / name, 2, {"x": [[1, 0], [0, value]]}, 2) for name, value in (("a", 0), ("b", 1))
    )
    assert compare(first, second, seed=0)["x"].difference == pytest.approx(0.25)  # (0 + 1/2)/2


@pytest.mark.parametrize(
    "change",
    [
        {"samples": "2"},
        {"samples": None},
        {"benchmarks": [1]},
        {"benchmarks": None},
        {"benchmarks": {"x": 3}},
        {"benchmarks": {"x": {"problems": "2", "row_set": "5f"}}},
    ],
)
def test_a_plan_with_fields_of_another_kind_is_one_line(change: dict[str, object], tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "a", 2, {"x": [[1, 0], [0, 1]]}, 2)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8")) | change
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(DataError, match=rf"plan\.json: {next(iter(change))}.* is .*, expected .*; not the plan"):
        compare(folder, folder, seed=0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("benchmark", ["x"]), ("benchmark", None), ("benchmark", ""), ("problem", 0), ("problem", "\ud800"),
        ("sample", {"a": 1}), ("sample", "0"), ("sample", 0.0), ("sample", False), ("sample", -1),
        ("question", None), ("answer", 5), ("response", 1), ("extracted", 5),
        ("verdict", "CORRECT"), ("verdict", ["correct"]), ("verdict", None),
        ("tokens", "3"), ("tokens", -1), ("tokens", 10**400),
        ("truncated", "no"), ("truncated", 0), ("token_ids", [1.5]), ("token_ids", 3),
    ],
)  # fmt: skip
def test_a_sample_with_a_field_of_another_kind_is_named(key: str, value: object, tmp_path: Path) -> None:
    path = sample_file(tmp_path / "a.jsonl", {"x": [[1], [0]]})
    first, second = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{first}\n{json.dumps(json.loads(second) | {key: value})}\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"a\.jsonl:2: not a sample \({key} is .*, expected .*\); the file is"):
        read_samples(path)


@pytest.mark.parametrize(("line", "what"), [("{}", "no 'benchmark'"), ("[1]", "got list"), ("3", "got int")])
def test_a_line_that_is_no_sample_is_named(line: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=rf"a\.jsonl:1: not a sample \({what}"):
        read_samples(path)


def test_an_unknown_key_of_a_sample_is_named_and_token_ids_may_be_absent(tmp_path: Path) -> None:
    path = sample_file(tmp_path / "a.jsonl", {"x": [[1]]})
    line = json.loads(path.read_text(encoding="utf-8"))
    del line["token_ids"]
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert read_samples(path)[0].token_ids is None
    path.write_text(json.dumps(line | {"foo": 1}) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="unknown key 'foo'"):
        read_samples(path)
