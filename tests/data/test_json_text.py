"""Every kind of damaged JSON ends in one line, wherever a user's file is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.audit.batch_texts import saved_texts
from nemo_uecr.audit.part_checks import read_plan
from nemo_uecr.audit.sources import parse_lines
from nemo_uecr.data.json_text import decoded, read_own_object
from nemo_uecr.data.model_files import read_object as read_model_file
from nemo_uecr.data.problems import load_problems
from nemo_uecr.errors import UecrError
from tests.report.conftest import Story, write_run

DAMAGE = {
    "cut": b'{"a": [1, 2',
    "deep": b'{"a": ' + b"[" * 100_000,
    "latin": b'{"a": "\xe9"}',
    "mark": b'\xef\xbb\xbf{"a": 1}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
    "empty": b"",
    "list": b"[1]",
    "number": b"7",
}
#: Who reads a value may judge NaN itself: a data set's row is left out, a model's number is named by its field.
STRICT = {"NaN": b'{"a": NaN}', "infinity": b'{"a": -Infinity}'}


def plan(path: Path) -> object:
    return read_plan(path.rename(path.parent / "scores.json").parent)


def of_a_run(path: Path) -> object:
    from nemo_uecr.telemetry.run_folder import read_run

    folder = path.parent / "run"
    write_run(folder, Story(steps=2, planned=2, evaluations=(), batches=()))
    path.rename(folder / "provenance.json")
    return read_run(folder)


READERS: dict[str, Callable[[Path], object]] = {
    "object": read_own_object,
    "model file": read_model_file,
    "plan of scores": plan,
    "texts of a batch": lambda path: saved_texts(path, responses=1),
    "run folder": of_a_run,
}


@pytest.mark.parametrize("damage", [*DAMAGE, *STRICT])
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_one_line(tmp_path: Path, reader: str, damage: str) -> None:
    if reader == "model file" and damage in STRICT:
        pytest.skip("a model's numbers are checked by field")
    path = tmp_path / "file.json"
    path.write_bytes((DAMAGE | STRICT)[damage] + (b"\n" if reader == "samples" else b""))
    with pytest.raises(UecrError) as found:
        READERS[reader](path)
    text = str(found.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 600
    assert ".json" in text


@pytest.mark.parametrize("damage", [name for name in DAMAGE if name != "empty"])
def test_a_damaged_line_is_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(DAMAGE[damage].replace(b"\n", b" ") + b"\n")
    for read in (
        lambda: next(parse_lines(path)),
        lambda: load_problems(path, question_key="question", answer_key="answer", id_key=None),
    ):
        with pytest.raises(UecrError) as found:
            read()
        assert len(str(found.value).splitlines()) == 1


def test_what_is_json_is_read() -> None:
    assert decoded(b'{"a": [1, 2.5, null, "\xc3\xa9"]}') == {"a": [1, 2.5, None, "\u00e9"]}


def test_a_mark_before_the_text_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(DAMAGE["mark"])
    with pytest.raises(UecrError, match="byte-order mark stands before it: save the file as UTF-8 without one"):
        load_problems(path, question_key="question", answer_key="answer", id_key=None)
