"""The review file as it comes back from a person's spreadsheet: read exactly, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.data.review import COLUMNS, has_verdicts, read_verdicts, review_fault
from nemo_uecr.errors import DataError

#: Two held rows; the text has a comma, a quote, a line break and a letter that latin-1 and UTF-8 write differently.
HELD = {"3": 1, "8": 1}
TEXT = '"Café, or ""tea""?\n"'
LINES = [",".join(COLUMNS), f"3,words,0.5,bench,0,keep,{TEXT},b", f"8,ngram,0.4,bench,1,drop,{TEXT},b"]
WHOLE = "\n".join(LINES) + "\n"


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "review.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        WHOLE,
        b"\xef\xbb\xbf" + WHOLE.encode(),  # Excel's "CSV UTF-8"
        WHOLE.replace("\n", "\r\n"),
        WHOLE.replace("keep", " Keep ").replace("drop", "DROP"),
        "verdict,row\nkeep,3\ndrop,8\n",  # nothing but what is needed
    ],
)
def test_what_a_spreadsheet_may_change_does_not_count(content: str | bytes, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    assert read_verdicts(path, HELD) == {3: "keep", 8: "drop"}
    assert review_fault(path, HELD) is None
    assert has_verdicts(path)


REFUSED = [
    (WHOLE.encode("utf-16"), "no readable CSV in UTF-8"),
    ("row;verdict\n3;keep\n8;drop\n", "columns are ['row;verdict']; expected row and verdict"),
    ("row,verdict\n3,keep\n", "0 lines on row '8', 1 expected"),
    ("row,verdict\n3,keep\n8,yes\n", "verdict on row 8 is 'yes'; expected keep or drop"),
]


@pytest.mark.parametrize(("content", "message"), REFUSED)
def test_anything_else_is_one_clear_line(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError) as error:
        read_verdicts(path, HELD)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}: ")


def test_a_row_with_two_findings_is_dropped_if_one_line_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "row,verdict\n3,keep\n3,drop\n8,keep\n")
    assert read_verdicts(path, {"3": 2, "8": 1}) == {3: "drop", 8: "keep"}
