"""Problem files: every row that could not be trained on is refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.data.problems import USUAL, Keys, Problem, read_problems
from nemo_uecr.data.sources import find_source, read_rows
from nemo_uecr.errors import DataError
from tests.data.shared_files import FOLDER, needs_real_files

GOOD = '{"id": "a", "question": "1+1?", "answer": "2"}'


def load(path: Path, *ids: str) -> list[Problem]:
    return read_problems(find_source(str(path), "train"), Keys(("question",), ("answer",), (), ids or ("id",)))


def write(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines) + b"\n")
    return path


def row(**changes: object) -> str:
    return json.dumps({"id": "b", "question": "2+2?", "answer": "4"} | changes)


def test_rows_in_file_order(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "", "   ", row(extra=[1]) + "\r")
    assert load(path) == [Problem("a", "1+1?", "2"), Problem("b", "2+2?", "4")]
    assert [problem.id for problem in load(path, "number")] == ["1", "2"]  # no such field: the rows are numbered
    assert load(path)[1].columns == {"id": "b", "question": "2+2?", "answer": "4", "extra": [1]}


@pytest.mark.parametrize(("answer", "text"), [(27, "27"), (27.0, "27"), (0.5, "0.5"), (r"\frac12", r"\frac12")])
def test_answers_may_be_numbers(tmp_path: Path, answer: object, text: str) -> None:
    assert load(write(tmp_path, row(answer=answer)))[0].answer == text


def test_other_field_names(tmp_path: Path) -> None:
    path = write(tmp_path, '{"problem": "1+1?", "final": 2, "n": 7}')
    found = read_problems(find_source(str(path), "train"), Keys(("problem",), ("final",), (), ("n",)))
    assert found == [Problem("7", "1+1?", "2")]


@pytest.mark.parametrize(
    "bad",
    ['{"id": "b", ', b'{"id": "\xff"}', '{"id": "b", "answer": "4"}', row(answer={}), row(id="a"), row(question=" ")],
)
def test_bad_row_is_refused_by_file_and_line(tmp_path: Path, bad: str | bytes) -> None:
    path = write(tmp_path, GOOD, "", bad)
    with pytest.raises(DataError, match=f"{path}:3: "):
        load(path)


def test_a_file_without_problems_and_no_file(tmp_path: Path) -> None:
    for path in (write(tmp_path, "", "  "), tmp_path / "missing.jsonl"):
        with pytest.raises(DataError, match=str(path)):
            load(path)


@needs_real_files
@pytest.mark.parametrize(("name", "rows"), [("aime24", 30), ("amc23", 40), ("math500", 500), ("gsm8k_test", 1319)])
def test_real_files(name: str, rows: int) -> None:
    path = FOLDER / f"{name}.jsonl"
    assert len(read_problems(find_source(str(path), "test"), USUAL)) == rows


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1, and then nothing")
    with pytest.raises(DataError, match=r"bad\.parquet: not a whole Parquet file"):
        list(read_rows(tmp_path / "bad.parquet"))
