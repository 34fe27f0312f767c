"""A judge's folder: written again it stays the same, and no other judgement's key is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_uecr.audit.judging_folder import write_judging
from nemo_uecr.errors import DataError


def test_the_same_judgement_may_be_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        write_judging(tmp_path / "j", "pairs.jsonl", [{"pair": "a", "text": "ü"}], [{"pair": "a", "first": "1"}])
    assert (tmp_path / "j" / "pairs.jsonl").read_text() == '{"pair": "a", "text": "ü"}\n'
    assert (tmp_path / "j" / "key.jsonl").read_text() == '{"pair": "a", "first": "1"}\n'


def test_the_key_of_another_judgement_is_not_written_over(tmp_path: Path) -> None:
    write_judging(tmp_path, "pairs.jsonl", [{"pair": "a"}], [{"pair": "a", "first": "1"}])
    with pytest.raises(DataError, match=r"key.jsonl is the key to verdicts on other questions; name another folder"):
        write_judging(tmp_path, "steps.jsonl", [{"item": "b"}], [{"item": "b", "response": "2"}])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key.jsonl", "pairs.jsonl"]
    assert (tmp_path / "key.jsonl").read_text() == '{"pair": "a", "first": "1"}\n'


@pytest.mark.parametrize("name", ["key.jsonl", "steps.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "device", "nothing"])
def test_only_regular_files_are_read_or_replaced(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero" if kind == "device" else tmp_path / "gone" / "file")
    with pytest.raises(DataError, match=rf"{name} is no regular file; name another folder"):
        write_judging(tmp_path, "steps.jsonl", [{"item": "b"}], [{"item": "b", "response": "2"}])
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_questions_without_their_key_are_not_written_over(tmp_path: Path) -> None:
    """The key was moved away from the judge; other questions would part it from the labels to come."""
    write_judging(tmp_path, "steps.jsonl", [{"item": "a"}], [{"item": "a", "response": "1"}])
    (tmp_path / "key.jsonl").unlink()
    with pytest.raises(DataError, match=r"steps.jsonl shows another judgement's questions; name another folder"):
        write_judging(tmp_path, "steps.jsonl", [{"item": "b"}], [{"item": "b", "response": "2"}])
    assert (tmp_path / "steps.jsonl").read_text() == '{"item": "a"}\n'
    assert not (tmp_path / "key.jsonl").exists()
