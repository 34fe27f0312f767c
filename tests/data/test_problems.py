"""Problem files: every row that could not be trained on is refused by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.data.problems import Problem, load_problems
from nemo_uecr.data.texts import usable
from nemo_uecr.errors import DataError

GOOD = '{"id": "a", "question": "1+1?", "answer": "2"}'


def load(path: Path, id_key: str | None = "id") -> list[Problem]:
    return load_problems(path, question_key="question", answer_key="answer", id_key=id_key)


def write(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines) + b"\n")
    return path


def row(**changes: object) -> str:
    return json.dumps({"id": "b", "question": "2+2?", "answer": "4"} | changes)


def test_rows_in_file_order(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "", "   ", row(extra=[1]))
    assert load(path) == [Problem("a", "1+1?", "2"), Problem("b", "2+2?", "4")]
    assert [problem.id for problem in load(path, id_key=None)] == ["1", "4"]  # line numbers


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (27, "27"),
        (27.0, "27"),
        (0.5, "0.5"),
        (-3, "-3"),
        (10**400, str(10**400)),
        (" 5 ", " 5 "),
        ("\\frac{1}{2}", "\\frac{1}{2}"),
    ],
)
def test_answers_may_be_numbers(tmp_path: Path, answer: object, text: str) -> None:
    assert load(write(tmp_path, row(answer=answer)))[0].answer == text


def test_other_field_names(tmp_path: Path) -> None:
    path = write(tmp_path, '{"problem": "1+1?", "final": 2, "n": 7}')
    found = load_problems(path, question_key="problem", answer_key="final", id_key="n")
    assert found == [Problem("7", "1+1?", "2")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"id": "b", ', "malformed JSON .*; expected one object a line"),
        ("nonsense", "malformed JSON"),
        ("[" * 100_000, "malformed JSON"),
        ('{"answer": ' + "9" * 5000 + "}", "malformed JSON"),
        ("[1, 2]", "got list; expected one JSON object"),
        ('"text"', "got str; expected one JSON object"),
        ("null", "got NoneType"),
        (b'{"id": "\xff"}', "not UTF-8 .* at byte 8"),
        ('{"id": "b", "answer": "4"}', "no field 'question'; the row has answer, id"),
        ('{"id": "b", "question": "q"}', "no field 'answer'; the row has id, question"),
        ('{"question": "q", "answer": "4"}', "no field 'id'"),
        ("{}", "the row has none"),
        (row(question=""), 'question is ""; expected a non-empty text'),
        (row(question=" \n\t"), "question is .*; expected a non-empty text"),
        (row(question=None), "question is null; expected a non-empty text"),
        (row(question=5), "question is 5; expected a non-empty text"),
        (row(question="\ud800"), "question is .*; expected a non-empty text"),
        (row(answer=""), 'answer is ""; expected a non-empty text or a number'),
        (row(answer="  "), "answer is .*; expected a non-empty text or a number"),
        (row(answer=None), "answer is null"),
        (row(answer=True), "answer is true"),
        (row(answer=[4]), r"answer is \[4\]"),
        (row(answer=float("nan")), "answer is NaN; expected a non-empty text or a number"),
        (row(answer=float("inf")), "answer is Infinity"),
        (row(id=""), 'id is ""; expected a non-empty text or an integer'),
        (row(id=None), "id is null; expected a non-empty text or an integer"),
        (row(id=[1]), r"id is \[1\]"),
        (row(id="a"), "duplicate id 'a', also on line 1; ids must be unique"),
        (row(question="x" * 0 + "  "), "question"),
        (row(question="\u200b"), "question is .*; expected a non-empty text"),
        (row(question="\x00"), "question is .*; expected a non-empty text"),
        (row(question=" \u200b\ufeff\u2028\x00"), "question is .*; expected a non-empty text"),
        (row(answer="\u200b"), "answer is .*; expected a non-empty text or a number"),
        (row(answer=r"\boxed{}"), "answer is .*; expected a non-empty text or a number"),
        (row(answer=r" \boxed{ }"), "answer is .*; expected a non-empty text or a number"),
        (row(answer="\\boxed{\u200b}"), "answer is .*; expected a non-empty text or a number"),
        (row(id="\u200b"), "id is .*; expected a non-empty text or an integer"),
        (row(id="a "), "duplicate id 'a ', also on line 1 as 'a'; white space around an id does not count"),
        ('{"id": "b", "question": "q", "answer": "4", "answer": "5"}', "the key 'answer' stands twice in one object"),
        ('{"id": "b", "question": "q", "answer": "4", "x": {"y": 1, "y": 1}}', "the key 'y' stands twice"),
    ],
)  # fmt: skip
def test_bad_row_is_refused_by_file_and_line(tmp_path: Path, bad: str | bytes, message: str) -> None:
    path = write(tmp_path, GOOD, "", bad)
    with pytest.raises(DataError, match=message) as error:
        load(path)
    assert str(error.value).startswith(f"{path}:3: ")
    assert "\n" not in str(error.value)


def test_number_and_text_ids_that_look_alike_are_duplicates(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=":2: duplicate id '1', also on line 1"):
        load(write(tmp_path, row(id=1), row(id="1")))


def test_long_values_are_shortened_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load(write(tmp_path, row(answer=["x" * 1000])))
    assert len(str(error.value)) < 300


def test_byte_order_mark_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r":1: malformed JSON .a byte-order mark stands before it: save the file as UTF-8 without one"
    ):
        load(write(tmp_path, b"\xef\xbb\xbf" + GOOD.encode()))


def test_windows_line_ends(tmp_path: Path) -> None:
    assert len(load(write(tmp_path, GOOD + "\r", row() + "\r"))) == 2


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_file_without_problems(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match="no problems in the file"):
        load(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(
            DataError, match="no such file; expected JSONL problems with fields 'question' and 'answer'"
        ):
            load(path)


@pytest.mark.parametrize(("name", "rows"), [("aime24", 30), ("amc23", 40), ("math500", 500), ("gsm8k_test", 1319)])
def test_real_files(name: str, rows: int) -> None:
    path = Path(__file__).resolve().parents[2].parent / "shared" / "data" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip("the public problem files are not beside the project")
    first = json.loads(path.open().readline())
    question = "problem" if "problem" in first else "question"
    found = load_problems(path, question_key=question, answer_key="answer", id_key=None)
    assert len(found) == rows


@pytest.mark.parametrize(
    ("text", "good"), [("\u200b", False), (" \u00ad\ufeff ", False), ("\u200b5", True), ("", False)]
)
def test_a_text_without_ink_is_empty(text: str, good: bool) -> None:
    assert usable(text) is good
