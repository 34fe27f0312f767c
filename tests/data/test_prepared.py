"""A prepared folder where a configuration asks for training problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.data.manifest import HELD, KEPT
from nemo_uecr.data.prepared import training_file
from nemo_uecr.errors import DataError
from tests.data.made import clean_rows, prepare_folder, write_benchmark, write_jsonl


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = write_jsonl(tmp_path / "source.jsonl", clean_rows(5))
    return prepare_folder(source, tmp_path / "out", write_benchmark(tmp_path))


def test_a_file_is_itself_and_a_prepared_folder_its_kept_rows(folder: Path) -> None:
    assert training_file(folder / KEPT, "data.train") == folder / KEPT
    assert training_file(folder, "data.train") == folder / KEPT


def test_what_is_neither_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"data\.train: .*nowhere: no such file; give a JSONL file"):
        training_file(tmp_path / "nowhere", "data.train")
    with pytest.raises(DataError, match=r"data\.train: .*empty has no manifest\.json"):
        training_file(tmp_path / "empty", "data.train")


@pytest.mark.parametrize("name", [KEPT, HELD])
def test_rows_changed_after_the_preparation_are_refused(folder: Path, name: str) -> None:
    with (folder / name).open("a", encoding="utf-8") as file:
        file.write('{"id": "mine", "question": "What is 1 + 1?", "answer": "2"}\n')
    with pytest.raises(DataError, match=f"{name} is not the one of the manifest; run `nemo-uecr data verify"):
        training_file(folder, "data.train")


def test_a_change_that_keeps_the_size_is_refused(folder: Path) -> None:
    content = bytearray((folder / KEPT).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / KEPT).write_bytes(content)
    with pytest.raises(DataError, match=f"{KEPT} is not the one of the manifest"):
        training_file(folder, "data.train")


def test_a_folder_without_a_kept_row_is_refused(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "source.jsonl", [{"question": " ", "answer": "1"}])
    with pytest.raises(DataError, match="has no kept row"):
        training_file(prepare_folder(source, tmp_path / "none"), "data.train")
