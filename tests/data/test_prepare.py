"""Preparation from end to end on made rows: what is kept, held and removed, and why."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_uecr.data.manifest import (
    COLUMNS,
    KEPT,
    faults,
    has_verdicts,
    jsonl,
    read_manifest,
    read_verdicts,
    training_file,
)
from nemo_uecr.data.prepare import ANSWER_TYPES, PrepareSettings, answer_type, apply_verdicts, prepare
from nemo_uecr.errors import DataError
from tests.data.made import BENCHMARK, clean_rows, deepmath_row, write_benchmark, write_jsonl

REWORDED = (
    "In Lyon, a baker has loaves in $17$ crates, with $23$ in every crate. If each ninth loaf is given away, how many "
    "loaves are left?"
)
Row = dict[str, object]


def settings(source: Path, screens: tuple[str, ...] = (), **changes: object) -> PrepareSettings:
    values: dict[str, object] = {
        "source": str(source), "revision": None, "screens": screens, "difficulty": (5.0, 7.0),
        "types": frozenset(ANSWER_TYPES), "sample": None, "seed": 42,
    }  # fmt: skip
    return PrepareSettings(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    rows: list[Row] = [
        *clean_rows(4),
        deepmath_row("Too easy, said the owl?", difficulty=4.5),
        deepmath_row("Too hard, said the owl?", difficulty=7.5),
        deepmath_row("On the edge, said the owl?", difficulty=7.0),
        deepmath_row("No difficulty, said the owl?", difficulty=None),
        deepmath_row("a lone \ud800 surrogate", answer="3"),
        deepmath_row("No answer at all, said the owl?", answer=" "),
        deepmath_row("on the EDGE,   said the owl ?", answer="5"),
        deepmath_row(BENCHMARK[1].upper()),
        deepmath_row(BENCHMARK[2][: len(BENCHMARK[2]) // 2]),
        deepmath_row(REWORDED),
    ]
    return write_jsonl(tmp_path / "source.jsonl", rows)


@pytest.fixture
def out(mixed: Path, tmp_path: Path) -> Path:
    """The mixed rows, prepared and screened."""
    prepare(settings(mixed, (str(write_benchmark(tmp_path)),)), tmp_path / "out")
    return tmp_path / "out"


def removed(folder: Path) -> dict[int, str]:
    return {row["row"]: row["reason"] for row in jsonl(folder / "screening/removed.jsonl")}


def test_every_row_is_kept_held_or_removed_with_its_reason(out: Path) -> None:
    assert [row["row"] for row in jsonl(out / "train.jsonl")] == [1, 2, 3, 4, 7]
    assert removed(out) == {
        5: "difficulty_outside", 6: "difficulty_outside", 8: "difficulty_missing", 9: "question_missing",
        10: "answer_empty", 11: "duplicate_question", 12: "screen_exact", 13: "screen_ngram",
    }  # fmt: skip
    [held] = jsonl(out / "screening/held.jsonl")
    assert (held["row"], held["findings"][0]["method"], held["findings"][0]["problem"]) == (14, "words", "0")
    counts = read_manifest(out)["counts"]
    assert (counts["read"], counts["kept"], counts["held"], counts["removed"]) == (14, 5, 1, 8)
    assert counts["reasons"]["difficulty_outside"] == 2
    assert faults(out) == []


def test_repeated_questions_with_other_answers_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first row is kept, right or wrong; repeats with the same answer need no word."""
    rows = [{"question": "What is 1+1?", "answer": answer, "difficulty": 5} for answer in ("3", "2", "3")]
    prepare(settings(write_jsonl(tmp_path / "source.jsonl", rows)), tmp_path / "out")
    assert "1 rows that repeat a question have another answer than its first row" in caplog.text


def test_a_sample_does_not_depend_on_the_order_of_the_source(tmp_path: Path) -> None:
    rows = clean_rows(50)
    digests = []
    for name, order in (("a", rows), ("b", rows[::-1])):
        manifest = prepare(settings(write_jsonl(tmp_path / f"{name}.jsonl", order), sample=20), tmp_path / name)
        assert manifest["counts"]["reasons"] == {"not_sampled": 30}
        digests.append({row["digest"] for row in jsonl(tmp_path / name / KEPT)})
        assert faults(tmp_path / name) == []
    assert digests[0] == digests[1]
    prepare(settings(tmp_path / "a.jsonl", sample=20, seed=43), tmp_path / "c")
    assert {row["digest"] for row in jsonl(tmp_path / "c" / KEPT)} != digests[0]
    with pytest.raises(DataError, match="50"):
        prepare(settings(tmp_path / "a.jsonl", sample=51), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def fill(out: Path, verdict: Callable[[dict[str, str]], str]) -> None:
    path = out / "screening/review.csv"
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, lines[0].keys())
        writer.writeheader()
        writer.writerows(line | {"verdict": verdict(line)} for line in lines)


@pytest.mark.parametrize(("verdict", "kept", "gone"), [("keep", 6, 8), ("Drop ", 5, 9)])
def test_verdicts_are_applied(verdict: str, kept: int, gone: int, out: Path) -> None:
    with pytest.raises(DataError, match="row 14"):
        apply_verdicts(out, out / "screening/review.csv")
    fill(out, lambda _: verdict)
    manifest = apply_verdicts(out, out / "screening/review.csv")
    assert (manifest["counts"]["kept"], manifest["counts"]["removed"], manifest["counts"]["held"]) == (kept, gone, 0)
    assert faults(out) == []
    assert (removed(out).get(14) == "screen_review") is (verdict != "keep")
    assert (out / "screening/reviewed-1.csv").is_file()
    assert [row["row"] for row in jsonl(out / "train.jsonl")][-1] == (14 if verdict == "keep" else 7)


def test_verdicts_are_never_overwritten(out: Path, mixed: Path, tmp_path: Path) -> None:
    asked = settings(mixed, (str(write_benchmark(tmp_path)),))
    prepare(asked, out)  # nobody has written into it: made anew
    fill(out, lambda _: "keep")
    for _ in range(2):
        with pytest.raises(DataError, match="verdicts"):
            prepare(asked, out)
        if (out / "screening/held.jsonl").stat().st_size:
            apply_verdicts(out, out / "screening/review.csv")


def test_an_altered_folder_is_found(out: Path) -> None:
    file = out / "train.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace('"answer": "3"', '"answer": "8"'), encoding="utf-8")
    assert "train.jsonl: content changed" in faults(out)[0]
    (out / "more.jsonl").write_text("{}\n", encoding="utf-8")
    assert "more.jsonl: not in the manifest" in faults(out)


def test_a_prepared_folder_is_its_kept_rows_where_a_configuration_names_it(tmp_path: Path) -> None:
    source, folder = write_jsonl(tmp_path / "s.jsonl", clean_rows(5)), tmp_path / "out"
    prepare(settings(source), folder)
    assert training_file(folder, "data.train") == training_file(folder / KEPT, "data.train") == folder / KEPT
    with pytest.raises(DataError, match="5 answer_integer"):
        prepare(settings(source, types=frozenset()), tmp_path / "none")
    assert not (tmp_path / "none").exists()
    content = bytearray((folder / KEPT).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / KEPT).write_bytes(content)
    with pytest.raises(DataError, match=KEPT):
        training_file(folder, "data.train")


def test_a_source_without_difficulties_and_a_folder_of_other_files_are_refused(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "no-difficulty.jsonl", [{"question": "x", "answer": "1"}])
    with pytest.raises(DataError, match=str(file)):
        prepare(settings(file), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(DataError, match="mine"):
        prepare(settings(write_jsonl(tmp_path / "ok.jsonl", clean_rows(2))), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()


# The review file as it comes back from a person's spreadsheet.

#: Two held rows; the text has a comma, a quote, a line break and a letter that latin-1 and UTF-8 write differently.
HELD = [{"row": 3, "findings": [{}]}, {"row": 8, "findings": [{}]}]
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
    assert has_verdicts(path)


@pytest.mark.parametrize(
    "content",
    [
        WHOLE.encode("utf-16"),
        "row;verdict\n3;keep\n8;drop\n",  # no commas
        "row,verdict\n3,keep\n",
        "row,verdict\n3,keep\n8,yes\n",
    ],
)
def test_anything_else_is_one_clear_line(content: str | bytes, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=str(path)):
        read_verdicts(path, HELD)


def test_a_row_with_two_findings_is_dropped_if_one_line_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, "row,verdict\n3,keep\n3,drop\n8,keep\n")
    assert read_verdicts(path, [{"row": 3, "findings": [{}, {}]}, HELD[1]]) == {3: "drop", 8: "keep"}


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("42", "integer"), ("-1{,}000", "integer"), ("3.5", "decimal"), (r"\frac{3}{4}", "fraction"),
        ("3/4", "fraction"),
        ("Yes", "yes_no"), (r"\text{No}", "yes_no"), ("B", "choice"),
        (r"\text{(C)}", "choice"), (r"\infty", "infinite"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "matrix"), ("(0, 1]", "interval"), (r"\{1, 2\}", "set"),
        ("y = 2x + 1", "equation"), (r"\text{ellipse}", "text"), ("hyperbola", "text"), (r"2\sqrt{3}", "expression"),
        ("x^2 - 1", "expression"),
    ],
)  # fmt: skip
def test_answer_types(answer: str, name: str) -> None:
    assert answer_type(answer) == name
