"""Problem files: every row that could not be trained on is refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.data.problems import USUAL, Keys, Problem, read_problems
from nemo_uecr.data.sources import find_source
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


@pytest.mark.parametrize(
    "bad",
    ['{"id": "b", ', '{"id": "b", "answer": "4"}', row(answer={}), row(id="a"), row(question=" ")],
)
def test_bad_row_is_refused_by_file_and_line(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path, GOOD, "", bad)
    with pytest.raises(DataError, match=f"{path}:3: "):
        load(path)


@needs_real_files
@pytest.mark.parametrize(("name", "rows"), [("aime24", 30), ("amc23", 40), ("math500", 500), ("gsm8k_test", 1319)])
def test_real_files(name: str, rows: int) -> None:
    path = FOLDER / f"{name}.jsonl"
    assert len(read_problems(find_source(str(path), "test"), USUAL)) == rows
