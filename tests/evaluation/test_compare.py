"""Paired comparison and selection, on hand values."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.compare import compare, select
from nemo_uecr.evaluation.samples import Sample


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


def result(avg: float, low: float, other: float) -> dict[str, object]:
    return {"sets": {"x": {"avg": avg, "low": low}, "y": {"avg": other, "low": other}}}


def test_selection_rules() -> None:
    results = [result(0.2, 0.1, 0.9), result(0.4, 0.3, 0.1), result(0.5, 0.35, 0.1), result(0.5, 0.4, 0.0)]
    assert select(results, "best", ["x"]) == 2  # 0.5 twice: the earlier one
    assert select(results, "earliest-near-best", ["x"]) == 1  # 0.4 >= 0.35
    assert select(results, "best", []) == 0  # (0.2 + 0.9)/2
    # The best is 0.5 with the interval from 0.25; 0.25 is not below it.
    assert select([result(0.25, 0.1, 0.1), result(0.5, 0.25, 0.1)], "earliest-near-best", ["x"]) == 0
    assert select(results, "last", []) == 3
    with pytest.raises(DataError, match="earliest-near-best"):
        select(results, "better", [])
    with pytest.raises(DataError, match="have x, y"):
        select(results, "best", ["z"])


def evaluation(folder: Path, k: int, rewards: dict[str, list[list[int]]], problems: int) -> Path:
    """An evaluation folder whose settings name so many problems of each benchmark."""
    folder.mkdir()
    sample_file(folder / "samples.jsonl", rewards)
    sets = {name: {"problems": problems, "row_set": "5f", "revision": None} for name in rewards}
    (folder / "settings.json").write_text(json.dumps({"samples": k, "seed": 1, "benchmarks": sets}), encoding="utf-8")
    return folder


def test_a_finished_evaluation_is_compared(tmp_path: Path) -> None:
    first, second = (
        evaluation(tmp_path / name, 2, {"x": [[1, 0], [0, value]]}, 2) for name, value in (("a", 0), ("b", 1))
    )
    assert compare(first, second, seed=0)["x"].difference == pytest.approx(0.25)  # (0 + 1/2)/2


def test_an_unfinished_evaluation_is_refused(tmp_path: Path) -> None:
    """One problem of three is not there."""
    first, second = (evaluation(tmp_path / name, 2, {"x": [[1, 0], [0, 1]]}, 3) for name in "ab")
    for pair in ((first, second), (second / "samples.jsonl", first)):
        with pytest.raises(DataError, match="not finished"):
            compare(*pair, seed=0)


def test_other_problems_are_refused(tmp_path: Path) -> None:
    first = sample_file(tmp_path / "a.jsonl", {"x": [[1, 0], [0, 1]]})
    lines = [json.loads(line) for line in first.read_text(encoding="utf-8").splitlines()]
    other = tmp_path / "b.jsonl"
    other.write_text("".join(json.dumps(line | {"answer": "7", "sample": n}) + "\n" for n, line in enumerate(lines)))
    with pytest.raises(DataError, match="differ in their problems"):
        compare(first, other, seed=0)


def test_another_number_of_samples_is_refused(tmp_path: Path) -> None:
    first = sample_file(tmp_path / "a.jsonl", {"x": [[1, 0], [0, 1]]})
    fewer = sample_file(tmp_path / "b.jsonl", {"x": [[1, 0], [0]]})
    with pytest.raises(DataError, match=r"problem 'p1' of x"):
        compare(first, fewer, seed=0)
