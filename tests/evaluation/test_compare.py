"""Paired comparison and selection, on hand values."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.compare import compare, paired_difference
from nemo_uecr.evaluation.samples import Sample
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


def test_hand_values() -> None:
    # Benchmark x: gaps 1/2, 0 -> mean 1/4. Benchmark y: gap -1/2 -> -1/2. Average (1/4 - 1/2)/2 = -1/8.
    found = paired_difference({"x": ([0.0, 1.0], [0.5, 1.0]), "y": ([1.0], [0.5])}, seed=0)
    assert found.difference == pytest.approx(-0.125)
    assert (found.first, found.second) == (pytest.approx(0.75), pytest.approx(0.625))  # ((0+1)/2+1)/2, ((.5+1)/2+.5)/2
    assert (found.better, found.worse, found.problems) == (1, 1, 3)
    # Resampling x gives a mean gap of 0, 1/4 or 1/2, y always -1/2: averages from -1/4 to 0.
    assert (found.low, found.high) == (pytest.approx(-0.25), pytest.approx(0.0))


def test_sign_changes_of_six_equal_gaps() -> None:
    # Six gaps of 1: only all + or all - are as extreme, 2 of 64 = 0.03125.
    found = paired_difference({"x": ([0.0] * 6, [1.0] * 6)}, seed=3)
    assert found.p_value == pytest.approx(2 / 64, abs=0.006)
    assert paired_difference({"x": ([0.5] * 6, [0.5] * 6)}, seed=3).p_value == 1.0


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
