"""Sources with odd columns and values: every row is kept or removed with a reason, and nothing breaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.data.manifest import REMOVED, faults, jsonl
from nemo_uecr.errors import DataError
from tests.data.made import deepmath_row, prepare_folder, write_benchmark, write_jsonl

ODD = {
    "question_missing": {"question": "a lone \ud800 surrogate"},
    "question_missing ": {"question": ["a", "list"]},
    "answer_missing": {"final_answer": float("nan")},
    "answer_missing ": {"final_answer": True},
    None: {"final_answer": 10**400},
    "kept": {"topic": "\ud800"},
    "kept ": {"difficulty": float("inf")},
    "kept  ": {"question": "\\frac" * 20_000},
}


def test_odd_values_of_jsonl(tmp_path: Path) -> None:
    rows = [deepmath_row(f"Which number comes after {n}?") | change for n, change in enumerate(ODD.values())]
    folder = prepare_folder(write_jsonl(tmp_path / "s.jsonl", rows), tmp_path / "out", write_benchmark(tmp_path))
    reasons = [row["reason"] for row in jsonl(folder / REMOVED)]
    assert reasons == [name.strip() for name in ODD if name is not None and not name.startswith("kept")]
    kept = {row["row"]: row for row in jsonl(folder / "train.jsonl")}
    assert sorted(kept) == [5, 6, 7, 8]
    assert kept[5]["answer"] == str(10**400)
    assert "topic" not in kept[6]
    assert "difficulty" not in kept[7]
    assert faults(folder) == []


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    count = 1000
    questions = [None if n % 100 == 3 else f"What is $x^{n}$ at $x={n}$, case {n}?" for n in range(count)]
    table = pyarrow.table(
        {
            "question": pyarrow.array(questions, pyarrow.large_string()),
            "final_answer": [None if n % 50 == 7 else str(n) for n in range(count)],
            "difficulty": pyarrow.array(
                [None if n % 90 == 1 else float("nan") if n % 90 == 2 else n % 10 for n in range(count)],
                pyarrow.float64(),
            ),
            "topic": pyarrow.array([f"t{n % 3}" for n in range(count)]).dictionary_encode(),
            "blob": [b"\xff"] * count,
            "nested": [{"a": [1, 2], "b": {"c": None}}] * count,
        }
    )
    pq.write_table(table, tmp_path / "odd.parquet", row_group_size=77)
    return tmp_path / "odd.parquet"


def test_a_thousand_rows_of_parquet_with_odd_columns(parquet: Path, tmp_path: Path) -> None:
    folder = prepare_folder(parquet, tmp_path / "out", write_benchmark(tmp_path))
    counts = json.loads((folder / "manifest.json").read_text())["counts"]
    # No question: 3, 103, ..., 903. No answer: 7, 57, ..., 957.
    assert counts["reasons"] == {"answer_missing": 20, "question_missing": 10}
    assert (counts["read"], counts["kept"], counts["held"]) == (1000, 970, 0)
    assert {row["topic"] for row in jsonl(folder / "train.jsonl")} == {"t0", "t1", "t2"}


@pytest.mark.parametrize("damage", ["cut", "rotten"])
def test_damaged_parquet_leaves_nothing(parquet: Path, damage: str, tmp_path: Path) -> None:
    content = bytearray(parquet.read_bytes())
    if damage == "cut":
        del content[-50:]
    else:
        content[100:2000] = bytes(1900)
    parquet.write_bytes(content)
    with pytest.raises(DataError, match="not a readable Parquet file"):
        prepare_folder(parquet, tmp_path / "out", write_benchmark(tmp_path))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))
