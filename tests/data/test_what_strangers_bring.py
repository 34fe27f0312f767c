"""Layouts, names and references of other people's data sets that would be misread in silence."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.data.problems import USUAL, Keys, problems_of, read_problems, repeats
from nemo_uecr.data.references import check_references
from nemo_uecr.data.sources import find_source
from nemo_uecr.errors import ConfigError, DataError
from tests.local import tiny
from tests.reliability.commands import refused

pyarrow: Any = pytest.importorskip("pyarrow")
for part in ("feather", "ipc", "parquet"):
    pytest.importorskip(f"pyarrow.{part}")

Row = dict[str, Any]
ROWS: list[Row] = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]


def load(path: Path, keys: Keys = USUAL, **where: list[object]) -> list[Any]:
    return read_problems(find_source(str(path), "train"), keys, where=where)


def jsonl(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# Names and containers.


def test_an_empty_system_turn_is_kept_and_a_missing_turn_is_none(tmp_path: Path) -> None:
    """Empty, it says that there is no system prompt, not even the template's own."""
    user = {"role": "user", "content": "1 + 1?"}
    rows = [
        {"prompt": [{"role": "system", "content": ""}, user], "answer": "2"},
        {"prompt": [user], "answer": "2"},
        {"prompt": [{"role": None, "content": None, "from": "human", "value": "1 + 1?"}], "answer": "2"},
    ]
    found = load(jsonl(tmp_path / "set.jsonl", rows))
    assert [each.context for each in found] == [({"role": "system", "content": ""},), (), ()]


def test_a_last_answer_of_the_assistant_is_left_out_of_the_prompt(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "It is 2."}]
    (found,) = load(jsonl(tmp_path / "set.jsonl", [{"messages": turns, "answer": "2"}]), Keys(question=("messages",)))
    assert (found.context, found.question) == ((), "1 + 1?")
    with pytest.raises(DataError, match="messages ends with a turn of 'assistant', expected the user's"):
        load(jsonl(tmp_path / "set.jsonl", [{"messages": turns[1:], "answer": "2"}]), Keys(question=("messages",)))


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("extra.info", {"extra.info": "1 + 1?"}),
        ("meta.extra.info", {"meta": {"extra.info": "1 + 1?"}}),
        ("meta.extra.info", {"meta.extra": {"info": "1 + 1?"}}),
        ("meta.extra.info", {"meta": {"other": 1}, "meta.extra": json.dumps({"info": "1 + 1?"})}),
        ("meta.extra.info", {"meta.extra": {"other": 1}, "meta": {"extra": {"info": "1 + 1?"}}}),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_names_with_dots(key: str, row: Row, kind: str, tmp_path: Path) -> None:
    path, rows = tmp_path / f"set.{kind}", [row | {"answer": "2"}]
    if kind == "jsonl":
        jsonl(path, rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    (found,) = load(path, Keys(question=(key,)))
    assert found.question == "1 + 1?"


def arrow_file(path: Path, table: Any) -> None:
    with pyarrow.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def arrow_stream(path: Path, table: Any) -> None:
    with pyarrow.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def feather(path: Path, table: Any) -> None:
    pyarrow.feather.write_feather(table, str(path), compression="zstd")


@pytest.mark.parametrize(
    ("name", "write"),
    [("set.arrow", arrow_file), ("set.arrow", arrow_stream), ("set.feather", feather)],
    ids=["file", "stream", "feather"],
)
def test_tables_of_arrow(name: str, write: Callable[[Path, Any], None], tmp_path: Path) -> None:
    write(tmp_path / name, pyarrow.Table.from_pylist(ROWS))
    assert [each.answer for each in load(tmp_path / name)] == ["1", "2", "3", "4"]
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a whole"):
        load(tmp_path / name)


@pytest.mark.parametrize("name", ["set.ndjson", "set.tsv", "set.ndjson.gz", "SET.NDJSON", "set.Ndjson.GZ"])
def test_other_endings_of_the_same_texts(name: str, tmp_path: Path) -> None:
    """Also inside a folder, where endings tell what is data."""
    lines = [f"{row['question']}\t{row['answer']}" for row in ROWS] if "tsv" in name else [*map(json.dumps, ROWS)]
    text = "".join(f"{line}\n" for line in (["question\tanswer", *lines] if "tsv" in name else lines)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.lower().endswith(".gz") else text)
    for place in (tmp_path / name, tmp_path):
        assert [each.answer for each in load(place)] == ["1", "2", "3", "4"]


def zstd(content: bytes) -> bytes:
    return bytes(pyarrow.compress(content, codec="zstd", asbytes=True))


@pytest.mark.parametrize(
    ("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstd)]
)
def test_compressed_texts(ending: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    plain = jsonl(tmp_path / "plain.jsonl", ROWS).read_bytes()
    path = tmp_path / f"set.jsonl.{ending}"
    path.write_bytes(pack(plain))
    assert len(load(path)) == len(ROWS)
    path.write_bytes(pack(plain)[:40])
    with pytest.raises(DataError, match="not a whole"):
        load(path)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("set.zip", b"PK\x03\x04\xff\xfe", "unpack it"),
        ("set.pq", b"PAR1 and more", r"another kind of file has a name that ends in \.parquet"),
        ("set.csv", "question,answer\n1+1?,2\n".encode("utf-16"), "or save it as UTF-8"),
        ("set.jsonl", '{"question": "Se\u00f1or?"}'.encode("latin-1"), "or save it as UTF-8"),
        ("set.feather", b"FEA1\0\0\0\0 and more", "Feather of version 1; expected version 2"),
    ],
)
def test_other_files_are_named(name: str, content: bytes, fault: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=fault):
        load(tmp_path / name)


def parquet(path: Path, table: Any) -> None:
    pyarrow.parquet.write_table(table, path)


@pytest.mark.parametrize(
    ("name", "write"), [("set.parquet", parquet), ("set.arrow", arrow_file), ("set.arrow", arrow_stream)]
)
def test_two_columns_of_one_name(name: str, write: Callable[[Path, Any], None], tmp_path: Path) -> None:
    """A join of tables leaves them; a row would keep the last one in silence."""
    columns = [pyarrow.array([text]) for text in ("1 + 1?", "2", "3")]
    write(tmp_path / name, pyarrow.Table.from_arrays(columns, names=["question", "answer", "answer"]))
    with pytest.raises(DataError, match=rf"{name} has the column 'answer' more than once"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("set.csv", "question,answer,answer\n1 + 1?,2,3\n", "has the column 'answer' more than once"),
        ("set.jsonl", '{"question": "1 + 1?", "answer": "2", "answer": "3"}\n', "'answer' more than once"),
        ("set.json", '[{"question": "1 + 1?", "answer": {"value": "2", "value": "3"}}]', "'value' more than once"),
        ("set.csv", ",question,answer,,\n0,1 + 1?,2,,\n", ""),  # as spreadsheets write empty columns
    ],
)
def test_two_fields_of_one_name_in_a_text(name: str, text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with nullcontext() if not fault else pytest.raises(DataError, match=fault):
        assert [each.answer for each in load(tmp_path / name)] == ["2"]


# Rows chosen by a field.


def test_rows_are_chosen_by_a_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nemo_uecr.cli.main import entry_point

    rows = [row | {"valid": n > 1, "meta": {"ability": "math" if n else "code"}} for n, row in enumerate(ROWS)]
    path = jsonl(tmp_path / "set.jsonl", rows)
    assert [each.id for each in load(path, valid=[True])] == ["3", "4"]
    assert [each.id for each in load(path, **{"meta.ability": ["math", "logic"]})] == ["2", "3", "4"]
    with pytest.raises(DataError, match=r"no row has a field 'ability', the rows have question, answer, valid, meta$"):
        load(path, ability=[True])
    with pytest.raises(
        DataError, match=r"none of 4 rows is chosen by valid=maybe; valid has 'False' \(2\), 'True' \(2\)"
    ):
        load(path, valid=["maybe"])
    prepare = ["data", "prepare", "--source", path, "--out", tmp_path / "out"]
    assert entry_point([*map(str, prepare), "--where", "valid=true", "--where", "meta.ability=math"]) == 0
    assert "removed        2  where" in capsys.readouterr().out
    assert len(load(tmp_path / "out" / "train.jsonl")) == 2
    assert "--where valid: expected FIELD=VALUE" in refused(capsys, *prepare, "--where", "valid")


def test_preparation_reads_the_columns_that_are_named(tmp_path: Path) -> None:
    """Of a table, which has others as well; a name may have dots, and --where several values."""
    from nemo_uecr.cli.main import entry_point

    kinds = ("math", "code", "logic")
    rows = [{"meta.extra": {"info": f"{n} + 1?"}, "answer": str(n), "by.kind": kind} for n, kind in enumerate(kinds)]
    parquet(tmp_path / "set.parquet", pyarrow.Table.from_pylist(rows))
    words = ["data", "prepare", "--source", tmp_path / "set.parquet", "--out", tmp_path / "out"]
    named = ["--question-key", "meta.extra.info", "--where", "by.kind=math,logic"]
    assert entry_point([*map(str, words), *named]) == 0
    assert [each.question for each in load(tmp_path / "out" / "train.jsonl")] == ["0 + 1?", "2 + 1?"]
    recorded = json.loads((tmp_path / "out" / "manifest.json").read_text())["settings"]["where"]
    assert recorded == {"by.kind": ["math", "logic"]}


def test_a_run_chooses_rows_to_train_on_and_none_of_a_benchmark(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "set.jsonl", [row | {"valid": n > 1} for n, row in enumerate(ROWS)])
    data = tiny.configured(tmp_path / "run", "data.where={valid: [true]}", "data.answer_key=answer").config.data
    assert [len(problems_of(data, path, key)) for key in ("data.train", "evaluation.benchmarks.a")] == [2, 4]
    with pytest.raises(ConfigError, match=r"data\.where\.valid"):
        tiny.configured(tmp_path / "run", "data.where={valid: []}")


@pytest.mark.parametrize(
    ("tags", "chosen"),
    [(["math"], True), (["Math", "easy"], True), (["code"], False), ([], False), (None, False), ("math", True)],
)
def test_a_list_is_chosen_by_any_of_its_values(tags: object, chosen: bool, tmp_path: Path) -> None:
    rows = [ROWS[0] | {"tags": tags}, ROWS[1] | {"tags": ["math", "hard"]}]
    assert len(load(jsonl(tmp_path / "set.jsonl", rows), tags=["math"])) == 1 + chosen
    with pytest.raises(DataError, match=r"tags has .*'hard' \(1\)"):
        load(tmp_path / "set.jsonl", tags=["none such"])


def test_a_row_that_is_not_chosen_need_not_be_readable(tmp_path: Path) -> None:
    rows = [ROWS[0] | {"ability": "math"}, {"question": None, "answer": None, "ability": "code"}]
    assert len(load(jsonl(tmp_path / "set.jsonl", rows), ability=["math"])) == 1


# Repeated rows.

SYSTEM = {"role": "system", "content": "Add."}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([ROWS[0], ROWS[0]], "6 rows are 4 questions"),
        ([ROWS[0] | {"answer": "7"}], "5 rows are 4 questions, .*; 1 of them with different answers"),
        ([ROWS[0] | {"question": " 0 +  1 ?"}], "5 rows are 4 questions"),
        ([ROWS[0] | {"body": "Ann counts."}], ""),
        ([{"question": "0 + 1?", "answer": "1", "options": ["1", "2"]}], ""),
        ([{"question": [SYSTEM, {"role": "user", "content": "0 + 1?"}], "answer": "1"}], ""),
        ([{"question": [SYSTEM | {"content": text}, {"role": "user", "content": "9"}], "answer": "9"}
          for text in ("Add.", " add .")], "6 rows are 5 questions"),
    ],
)  # fmt: skip
def test_repeated_questions_are_told(more: list[Row], said: str, tmp_path: Path) -> None:
    found = repeats(load(jsonl(tmp_path / "set.jsonl", [*ROWS, *more])), None)
    assert re.search(said, found or "")
    assert bool(found) == bool(said)


# Reference and prompt.

PETS = ["a cat", "a dog", "a hen"]


@pytest.mark.parametrize(
    ("row", "template", "said"),
    [
        (
            {"options": PETS, "answer": "1"},
            "{question} {options}",
            "'1' of problem '1', whose options are A, B, C; exp",
        ),
        ({"choices": PETS, "answer": 2}, "{question}", "3 of 3 answers are none of their options"),
        ({"choices": PETS, "answer": "b"}, "{question} {choices}", "none of their options, such as 'b'"),
        ({"choices": PETS, "answer": "D"}, "{question} {choices}", "none of their options, such as 'D'"),
        ({"choices": {"label": ["1", "2"], "text": PETS[:2]}, "answerKey": "B"}, "{choices}", "are 1, 2; expected '1'"),
        ({"choices": {"label": ["1", "2"], "text": PETS[:2]}, "answerKey": 0}, "{choices}", "are 1, 2; expected '1'"),
        ({"choices": str(PETS), "answer": "1"}, "{question} {choices}", "whose choices are A, B, C"),
        ({"choices": PETS, "answer": "B"}, "{question}", r"do not show; .* as '\{question\} \{choices\}'"),
        ({"choices": {"label": ["1", "2"], "text": PETS[:2]}, "answerKey": "2"}, "{question}", r"\{choices\}'"),
        ({"choices": {"label": ["A", "B"], "text": PETS[:2]}, "answerKey": "B"}, "{question}", "do not show"),
        ({"options": {"A": "a cat", "B": "a dog"}, "answer": "(B)"}, "{question}", r"do not show; .* \{options\}'"),
        ({"choices": PETS, "answer": "B"}, "{question} {choices}", None),
        ({"choices": {"label": ["1", "2"], "text": PETS[:2]}, "answerKey": "2"}, "{question} {choices}", None),
        ({"choices": ["3", "4", "5"], "answer": "4"}, "{question} {choices}", None),
        ({"choices": PETS, "answer": "a dog"}, "{question} {choices}", None),
        ({"choices": ["$12$", "$2$"], "answer": "2"}, "{question} {choices}", None),
        ({"choices": ["12 cats", "1 dog"], "answer": "12"}, "{question} {choices}", None),
        ({"choices": "A) a cat B) a dog", "answer": "B"}, "{question} {choices}", None),
    ],
)
def test_options_and_their_answers(row: Row, template: str, said: str | None, tmp_path: Path) -> None:
    problems = load(jsonl(tmp_path / "set.jsonl", [{"question": f"Which barks, {n}?"} | row for n in range(3)]))
    if said is None:
        return check_references("set", problems, template=template)
    with pytest.raises(DataError, match=said):
        check_references("set", problems, template=template)


def test_a_few_answers_that_are_no_options_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And most of them, where nothing is refused, as by `data prepare`."""
    rows = [{"question": f"Which barks, {n}?", "choices": PETS, "answer": "B"} for n in range(3)]
    few = load(jsonl(tmp_path / "set.jsonl", [*rows[:2], rows[2] | {"answer": "2"}]))
    check_references("set", few, template="{question} {choices}")
    assert "1 of 3 answers are none of their options" in caplog.text
    every = load(jsonl(tmp_path / "set.jsonl", [row | {"answer": "2"} for row in rows]))
    check_references("set", every, refuse=False, template="{question} {choices}")
    assert "3 of 3 answers are none of their options" in caplog.text
    caplog.clear()
    plain = load(jsonl(tmp_path / "set.jsonl", [*rows[:1], *ROWS]))
    check_references("set", plain)
    assert "1 of 5 answers, such as 'B' of problem '1', name options that the questions do not show" in caplog.text
    caplog.clear()
    check_references("set", plain, template="{question} {choices}")
    assert not caplog.text


def test_options_that_are_one_text_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = {"question": "Which barks?", "choices": "A) a cat B) a dog", "answer": "B"}
    check_references("set", load(jsonl(tmp_path / "set.jsonl", [row])))
    (told,) = caplog.messages
    assert "the questions do not show their field 'choices'" in told


@pytest.mark.parametrize(
    "options", [PETS, json.dumps(PETS), str(PETS), dict(zip("ABC", PETS, strict=True)), json.dumps({"A": "a cat"} | {
        "B": "a dog", "C": "a hen"})],
)  # fmt: skip
def test_options_that_a_table_keeps_as_text(options: object, tmp_path: Path) -> None:
    """As CSV and many Parquet files have them; shown as they are, they have no letters."""
    path = jsonl(tmp_path / "set.jsonl", [{"question": "Which barks?", "choices": options, "answer": "B"}])
    (problem,) = load(path)
    assert problem.turn("{choices}") == "A) a cat\nB) a dog\nC) a hen"
    assert replace(problem, columns={"body": "[1, 2]"}).turn("{body}") == "[1, 2]"


def test_options_of_signs_that_json_writes_as_two(tmp_path: Path) -> None:
    """A sign beyond the first 65,536 is a pair of escapes in JSON, which Python's own lists do not know."""
    written = json.dumps(["\U0001d465", "a dog"])
    assert "\\ud835\\udc65" in written
    (problem,) = load(jsonl(tmp_path / "set.jsonl", [{"question": "Which?", "choices": written, "answer": "B"}]))
    assert problem.turn("{choices}") == "A) \U0001d465\nB) a dog"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"option_a": "a cat", "option_b": "a dog"}, True),
        ({"A": "a cat", "B": "a dog"}, True),
        ({"question": "Which barks?\nA. a cat\nB. a dog"}, False),
        ({"question": "Which barks, (A) a cat or (B) a dog?"}, False),
        ({"answer": "Bismuth"}, False),
    ],
)
def test_options_in_fields_that_no_prompt_shows(
    row: Row, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"question": "Which barks?", "answer": "B", "number": n} | row for n in range(2)]
    check_references("set", load(jsonl(tmp_path / "set.jsonl", rows)))
    assert ("2 of 2 answers are letters, such as 'B' of problem '1', that the prompts do not" in caplog.text) == told


@pytest.mark.parametrize("answer", ["1.234,5", "1.234.567", "1'234", "1\u2019234.5", "1,23,456", "-1_234"])
def test_numbers_as_other_countries_group_them(answer: str, tmp_path: Path) -> None:
    """They equal themselves, and not the number as models write it."""
    with pytest.raises(DataError, match=r"cannot judge 1 of 1 .* such as 7/2 or 1234\.5"):
        check_references("set", load(jsonl(tmp_path / "set.jsonl", [{"question": "?", "answer": answer}])))


@pytest.mark.parametrize("answer", ["1,234,567", "1,234.5", "1.234", "0,5", "1, 2", "12,34", "f'(2)"])
def test_numbers_and_lists_that_the_verifier_reads(
    answer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_references("set", load(jsonl(tmp_path / "set.jsonl", [{"question": "?", "answer": answer}])))
    assert not caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        {"inputs": ["1\n"], "outputs": ["2\n"]},
        [{"input": "1", "output": "2"}],
        "assert add(1, 1) == 2",
        "def add(a, b):\n    return a + b",
    ],
)
def test_tests_of_code_are_no_answers(answer: object, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A few beside answers are told; most of a source is refused."""
    row = {"question": "Write add.", "answer": answer if isinstance(answer, str) else json.dumps(answer)}
    check_references("set", load(jsonl(tmp_path / "few.jsonl", [*ROWS, row])))
    assert "cannot judge 1 of 5" in caplog.text
    with pytest.raises(DataError, match="cannot judge 1 of 1"):
        check_references("set", load(jsonl(tmp_path / "all.jsonl", [row])))


def test_lists_of_numbers_are_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_references("set", load(jsonl(tmp_path / "set.jsonl", [{"question": "Roots?", "answer": "[1, 2]"}])))
    assert not caplog.text


@pytest.mark.parametrize(
    ("asks", "form"),
    [
        ("The last line of your response should be of the form Answer: $Answer (without quotes).", "after Answer:"),
        ("End with **Answer:** [your answer].", "after Answer:"),
        ("End with **Answer**: and the number.", "after Answer:"),
        ('Remember to put your answer on its own line after "Answer:".', "after Answer:"),
        ("Finish with the line 'Final answer:'.", "after Answer:"),
        ("Put it between <answer> and </answer>.", "in tags or brackets"),
        ("Close with <final_answer>.", "in tags or brackets"),
        ("End with [[answer]].", "in tags or brackets"),
        ("The last line should be 'Answer: $LETTER', one of ABCD.", "after Answer:"),
        ("Use the format ANSWER: 42", "after Answer:"),
        ("\u6700\u540e\u4e00\u884c\u5199\u201c\u7b54\u6848\uff1a\u201d\u548c\u7ed3\u679c\u3002", "after Answer:"),
        ("Answer:", "after Answer:"),
        ('Finish your answer with "the answer is (X)".', "after 'the answer is'"),
        ("End with: 'Therefore, the final answer is X'.", "after 'the answer is'"),
        ("```json ...```", "as JSON"),
        ('Return valid JSON with the key "answer".', "as JSON"),
        ("Give it after ####.", "after ####"),
        (r"Put it in \boxed{}. Answer: {x}", None),
        ("Answer briefly.", None),
        ("The answer is an integer.", None),
    ],
)
def test_prompts_that_ask_for_another_form(
    asks: str, form: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the questions themselves, in a system turn, or in the template."""
    path = jsonl(tmp_path / "set.jsonl", [row | {"question": f"{row['question']}\n{asks}"} for row in ROWS])
    check_references("set", load(path))
    assert (f"4 of 4 prompts ask for the answer {form}" in caplog.text) == (form is not None)
    assert form is None or asks[-40:] in caplog.text
    caplog.clear()
    plain = load(jsonl(tmp_path / "plain.jsonl", ROWS))
    check_references("set", [replace(each, context=({"role": "system", "content": asks},)) for each in plain])
    assert bool(caplog.text) == (form is not None)
    caplog.clear()
    check_references("set", plain, template=f"{{question}} {asks}")
    assert bool(caplog.text) == (form is not None)


@pytest.mark.parametrize("name", ["set.parquet", "set.jsonl", "set.json", "set.arrow", "set.csv", "set.jsonl.gz"])
def test_pointers_of_git_lfs(name: str, tmp_path: Path) -> None:
    """What a clone without Git LFS leaves; it is no damaged file."""
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(DataError, match=rf"{name} is a pointer of Git LFS and not the file itself"):
        load(tmp_path / name)


@pytest.mark.parametrize("answer", [r"\\frac{1}{2}", r"3\\sqrt{2}", "x &lt; 3", "5 &amp; 6", "&#8722;4"])
def test_answers_that_were_escaped_once_more(answer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They equal themselves, and no answer that a model writes."""
    rows = [{"question": f"{n} + 1?", "answer": answer} for n in range(2)]
    with pytest.raises(DataError, match=r"cannot judge 2 of 2 .*no sentences, worked solutions, HTML or doubled"):
        check_references("set", load(jsonl(tmp_path / "set.jsonl", rows)))
    check_references("set", load(jsonl(tmp_path / "set.jsonl", [*rows[:1], *ROWS])))
    assert "cannot judge 1 of 5 reference answers" in caplog.text


@pytest.mark.parametrize("answer", [r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\\frac23\end{pmatrix}"])
def test_rows_of_a_matrix_are_no_doubled_backslashes(answer: str, tmp_path: Path) -> None:
    check_references("set", load(jsonl(tmp_path / "set.jsonl", [{"question": "M?", "answer": answer}])))


@pytest.mark.parametrize(
    "question",
    [
        "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n",
        "<s>[INST] 1 + 1? [/INST]",
        "<start_of_turn>user\n1 + 1?<end_of_turn>",
        "<\uff5cUser\uff5c>1 + 1?<\uff5cAssistant\uff5c>",
        "A conversation between User and Assistant.\nUser: 1 + 1?\nAssistant: <think>",
        "### Instruction:\n1 + 1?\n\n### Response:",
    ],
)
def test_questions_that_are_rendered_prompts(question: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_references("set", load(jsonl(tmp_path / "set.jsonl", [{"question": question, "answer": "2"}])))
    assert "1 of 1 questions look like prompts that are rendered already" in caplog.text


@pytest.mark.parametrize("part", [{"text": None}, {"content": "1 + 1?"}, {"text": ["1 + 1?"]}])
def test_a_part_of_a_turn_without_text(part: Row, tmp_path: Path) -> None:
    """It would be asked as the word None."""
    turns = [{"role": "user", "content": [{"type": "text"} | part]}]
    with pytest.raises(DataError, match="a turn whose role is a text and content null"):
        load(jsonl(tmp_path / "set.jsonl", [{"prompt": turns, "answer": "2"}]))


def test_turns_whose_content_changes_its_type(tmp_path: Path) -> None:
    """From row to row a text or a list of parts, which a table of one type cannot hold."""
    user = {"role": "user", "content": "1 + 1?"}
    parts = [{"role": "user", "content": [{"type": "text", "text": "1 + 1?"}]}]
    found = load(jsonl(tmp_path / "set.jsonl", [{"prompt": [user], "answer": 2}, {"prompt": parts, "answer": "2"}]))
    assert [each.question for each in found] == ["1 + 1?"] * 2
