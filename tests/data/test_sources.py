"""Splits, file kinds and layouts, each as some published data set or another trainer has it."""

from __future__ import annotations

import datetime
import decimal
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from huggingface_hub import constants as hub
from pyarrow import parquet

from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.benchmarks import load_benchmarks
from nemo_uecr.data.problems import USUAL, Keys, Problem, problems_of, read_problems
from nemo_uecr.data.references import check_references
from nemo_uecr.data.sources import find_source
from nemo_uecr.errors import DataError
from tests.data.hub import serve
from tests.data.made import COMMIT, FOLDER, cache_data_set, needs_real_files, write_jsonl
from tests.reliability.commands import refused

Row = dict[str, Any]
ROWS: list[Row] = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]
SHARD = "00000-of-00001.parquet"


def table(path: Path, rows: list[Row], schema: object = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)
    return path


def arrow(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = pyarrow.Table.from_pylist(rows)
    with pyarrow.ipc.new_stream(str(path), content.schema) as stream:
        stream.write_table(content)
    return path


def load(given: object, keys: Keys = USUAL) -> list[Problem]:
    return read_problems(find_source(str(given), "train"), keys)


def prepared(source: Path, *words: str) -> Path:
    """The folder that `data prepare` makes of a source."""
    out = source.with_name("out")
    assert entry_point(["data", "prepare", "--source", str(source), "--out", str(out), *words]) == 0
    return out


# Files.

CONTENT: dict[str, bytes] = {
    "set.json": json.dumps(ROWS).encode(),
    "pretty.json": json.dumps(ROWS, indent=2).encode(),
    "array.jsonl": json.dumps(ROWS, indent=2).encode(),  # a name that promises lines
    "objects.json": "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(),
    "marked.jsonl": b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(row).encode() for row in ROWS),
    "packed.jsonl.gz": gzip.compress(b"\n".join(json.dumps(row).encode() for row in ROWS), mtime=0),
    "set.csv": b"question,answer\r\n" + b"".join(f"{row['question']},{row['answer']}\r\n".encode() for row in ROWS),
}


@pytest.mark.parametrize("name", CONTENT)
def test_every_kind_of_file_gives_the_same_problems(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(CONTENT[name])
    assert load(tmp_path / name) == load(write_jsonl(tmp_path / "plain.jsonl", ROWS))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("set.parquet", b"PAR1, and then nothing"),
        ("set.jsonl", b"\n  \n"),
        ("set.jsonl", b'{"id": "\xff"}'),
        ("set.arrow", b"nothing"),
        ("set.jsonl.gz", CONTENT["packed.jsonl.gz"][:40]),
        ("set.json", CONTENT["pretty.json"][:60]),
        ("set.jsonl", b'{"question": '),
        ("set.csv", "question,answer\nGröße?,1\n".encode("latin-1")),
        ("set.csv", b"question,answer\nWhat is 1,5 + 1?,2.5\n"),
        ("set.json", b'["a", "b"]'),
    ],
)
def test_a_damaged_file_is_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=str(tmp_path / name)):
        load(tmp_path / name)


def test_rows_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    first, second = '{"id": "a", "question": "1+1?", "answer": "2"}', '{"id": "b", "question": "2+2?", "answer": 4}'
    path.write_text(f"{first}\n\n   \n{second}\r\n")
    assert load(path) == [Problem("a", "1+1?", "2"), Problem("b", "2+2?", "4")]
    assert load(path)[1].columns == {"id": "b", "question": "2+2?", "answer": 4}
    path.write_text(f"{first}\n" + second.replace('"id"', '"tests": [], "id"'))
    assert [problem.columns["tests"] for problem in load(path)] == [None, []]  # as in a table
    unnamed = Keys(("question",), ("answer",), (), ("number",))  # no such field: the rows are numbered
    assert [problem.id for problem in load(path, unnamed)] == ["1", "2"]


@pytest.mark.parametrize("bad", [{"question": None}, {"answer": {}}, {"id": "a"}, {"question": " "}])
def test_a_row_that_is_no_problem_is_refused_by_file_and_line(tmp_path: Path, bad: Row) -> None:
    rows = [{"id": name, "question": "2+2?", "answer": "4"} for name in "ab"]
    path = write_jsonl(tmp_path / "problems.jsonl", [rows[0], rows[1] | bad])
    with pytest.raises(DataError, match=f"{path}:2: "):
        load(path)


@needs_real_files
@pytest.mark.parametrize(("name", "rows"), [("aime24", 30), ("amc23", 40), ("math500", 500), ("gsm8k_test", 1319)])
def test_real_files(name: str, rows: int) -> None:
    assert len(load(FOLDER / f"{name}.jsonl")) == rows


# Splits.

#: Files, each with its one row's number, and what training and a benchmark read of them; None: a choice is asked for.
LAYOUTS: dict[str, tuple[dict[str, int], list[int] | None, list[int] | None]] = {
    "gsm8k, one configuration": ({f"main/test-{SHARD}": 0, f"main/train-{SHARD}": 1}, [1], [0]),
    "both": ({f"main/train-{SHARD}": 0, f"socratic/train-{SHARD}": 1}, None, None),
    "shards": ({"data/train-00000-of-00002.parquet": 0, "data/train-00001-of-00002.parquet": 1}, [0, 1], [0, 1]),
    "more trains": ({f"data/train-{SHARD}": 0, f"data/train_1M-{SHARD}": 1}, [0], None),
    "no such names": ({f"data/en-{SHARD}": 0, f"data/fr-{SHARD}": 1}, None, None),
    "flat": ({"train.parquet": 0, "test.parquet": 1, "validation.parquet": 2}, [0], [1]),
    "no test": ({"train.parquet": 0, "dev.parquet": 1}, [0], None),
    "a name that ends in test": ({"contest.parquet": 0}, [0], [0]),
    "infix": ({"my-train-set.parquet": 0, "my_eval_set.parquet": 1}, [0], [1]),
    "converted": ({"default/train/0000.parquet": 0, "default/test/0000.parquet": 1}, [0], [1]),
    "below": ({"train/algebra/1.parquet": 0, "train/geometry/1.parquet": 1, "test/algebra/1.parquet": 2}, [0, 1], [2]),
    "contest is no test": ({"contest.parquet": 0, "latest.parquet": 1}, [0, 1], [0, 1]),
    "held out alone": ({"test.parquet": 0}, None, [0]),
    "train alone": ({f"data/train-{SHARD}": 0}, [0], [0]),
    "beside others": ({"data/part-0.parquet": 0, "extra/part-0.parquet": 1}, None, None),
    "hidden": ({"train.parquet": 0, ".cache/train.parquet": 1}, [0], [0]),
    "saved by datasets": ({"train/data-00000-of-00001.arrow": 0, "test/data-00000-of-00001.arrow": 1}, [0], [1]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_training_reads_train_and_a_benchmark_test(name: str, tmp_path: Path) -> None:
    files, *expected = LAYOUTS[name]
    for file, number in files.items():
        (arrow if file.endswith("arrow") else table)(tmp_path / file, [ROWS[number]])
        (tmp_path / file).with_name("dataset_info.json").write_text("{}")
    for role, numbers in zip(("train", "test"), expected, strict=True):
        if numbers is None:
            with pytest.raises(DataError, match="splits"):
                find_source(str(tmp_path), role)  # type: ignore[arg-type]
        else:
            found = read_problems(find_source(str(tmp_path), role), USUAL)  # type: ignore[arg-type]
            assert [problem.question for problem in found] == [ROWS[number]["question"] for number in numbers]


@pytest.mark.parametrize(
    ("choice", "numbers"),
    [("main", [0]), ("main/test", [1]), ("default", [3]), ("socratic", [2]), ("*/train", [0, 2]), ("other", None)],
)
def test_a_choice_names_configuration_split_or_both(choice: str, numbers: list[int] | None, tmp_path: Path) -> None:
    for number, file in enumerate(("main/train", "main/test", "socratic/train", "data/a-b")):
        table(tmp_path / f"{file}-{SHARD}", [ROWS[number]])
    if numbers is None:
        with pytest.raises(DataError, match="default, main/test, main/train, socratic/train"):
            load(f"{tmp_path}:{choice}")
    else:
        assert [int(problem.answer) - 1 for problem in load(f"{tmp_path}:{choice}")] == numbers


def test_a_hub_name_is_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`data prepare` and the benchmarks, on a folder laid out as the cache."""
    marked = [row | {"answer": f"We add.\n#### {row['answer']}"} for row in ROWS]
    splits = {"test": marked[:1], "train": marked[1:]}
    files = {f"{part}/{split}-{SHARD}": rows for part in ("main", "socratic") for split, rows in splits.items()}
    cache_data_set(tmp_path / "cache", "openai/gsm8k", files)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    out = ["--out", str(tmp_path / "out")]
    assert "main/test, main/train" in refused(capsys, "data", "prepare", "--source", "openai/gsm8k", *out)
    assert entry_point(["data", "prepare", "--source", "openai/gsm8k:main", *out]) == 0
    kept = [json.loads(line) for line in (tmp_path / "out/train.jsonl").open()]
    assert [row["answer"] for row in kept] == ["2", "3", "4"]
    assert json.loads((tmp_path / "out/manifest.json").read_text())["source"]["revision"] == COMMIT
    assert [problem.answer for problem in load_benchmarks(["openai/gsm8k:main"])["gsm8k"].problems] == ["1"]


CARD = """---
configs:
- config_name: easy
  data_files: [{split: train, path: files/1*.jsonl}, {split: test, path: files/2.jsonl}]
- config_name: train
  data_files: [{split: train, path: files/3.jsonl}]
---
"""
DEFAULT = """---
configs:
- config_name: default
  data_files: [{split: train, path: files/1.jsonl}, {split: math_500, path: files/2.jsonl}]
- config_name: Level 1 [hard]
  data_files: files/3.jsonl
---
"""
HELD_OUT = """---
configs: [{config_name: main, data_files: [{split: test, path: files/1.jsonl}]}]
---
"""
#: Data sets by the text of their cards; each has one row in files/1.jsonl, 2.jsonl and 3.jsonl.
CARDS = {
    "carded": CARD,
    "usual": DEFAULT,
    "heldout": HELD_OUT,
    "broken": "---\nconfigs: [a: b: c\n---\n",
    "bare": "# A set",
}
#: Sources on the hub, and the numbers of the rows that training reads, or words of the error.
ON_THE_HUB: dict[str, list[int] | str] = {
    "owner/carded:easy": [0],
    "owner/carded:easy/test": [1],
    "owner/carded:*/train": [0, 2],
    "owner/carded": "2 splits, and none is chosen; it has easy/test, easy/train, train/train. Write",
    "owner/carded:train": [2],
    "owner/carded:ease": "no configuration or split 'ease'; it has easy/test, easy/train",
    "https://huggingface.co/datasets/owner/usual": [0],
    "owner/usual:*/train": [0, 2],
    "owner/usual:math_500": [1],
    "owner/usual:Level 1 [hard]": [2],
    "owner/heldout:main": "only splits that are held out; it has main/test",
    "owner/heldout:main/test": [0],
    "owner/broken": [0, 1, 2],
    "owner/bare": [0, 1, 2],
    "owner/plain": [0],
    "owner/plain:test": [1],
}
READ = """import json, sys
from nemo_uecr.data.problems import USUAL, read_problems
from nemo_uecr.data.sources import find_source
from nemo_uecr.errors import DataError
found = {}
for name in json.loads(sys.argv[1]):
    try:
        found[name] = [int(problem.answer) - 1 for problem in read_problems(find_source(name, "train"), USUAL)]
    except DataError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def test_a_hub_name_is_read_as_its_card_says_online_offline_and_of_a_local_copy(tmp_path: Path) -> None:
    """In processes of their own, which read the hub's address as they start."""
    owner = tmp_path / "hub/owner"
    mixed = [ROWS[0] | {"extra": 1}, ROWS[1] | {"extra": "two"}, ROWS[2]]  # Arrow would refuse the mixture
    for name, card in CARDS.items():
        for number, row in enumerate(mixed, start=1):
            write_jsonl(owner / f"{name}/files/{number}.jsonl", [row])
        (owner / f"{name}/README.md").write_text(card)
    table(owner / f"plain/data/train-{SHARD}", ROWS[:1])
    table(owner / f"plain/data/test-{SHARD}", ROWS[1:2])
    (owner / "texts").mkdir()
    (owner / "texts/notes.txt").write_text("no rows")

    def read(names: Collection[str], **more: str) -> dict[str, list[int] | str]:
        environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"} | more
        command = [sys.executable, "-c", READ, json.dumps(list(names))]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        found: dict[str, list[int] | str] = json.loads(done.stdout)
        return found

    def check(found: Mapping[str, list[int] | str], written: Callable[[str], str] = str) -> None:
        for name, expected in ON_THE_HUB.items():
            got = found[written(name)]
            assert got == expected if isinstance(expected, list) else expected in got, (name, got)

    with serve(tmp_path / "hub") as address:
        found = read([*ON_THE_HUB, "owner/texts", "owner/absent"], HF_ENDPOINT=address, HF_HUB_OFFLINE="0")
    check(found)
    assert "no file of this data set on the hub ends in .parquet" in str(found["owner/texts"])
    assert "Repository Not Found" in str(found["owner/absent"])
    check(read(ON_THE_HUB, HF_HUB_OFFLINE="1"))

    def local(name: str) -> str:
        return name.replace("https://huggingface.co/datasets/", "").replace("owner/", f"{owner}/")

    check(read([local(name) for name in ON_THE_HUB], HF_HUB_OFFLINE="1"), local)


def test_a_folder_named_like_the_owner_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "openai").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="with a folder openai here it is no name on the hub"):
        load("openai/gsm8k:main")


# Rows.


def verl(row: Row, *before: Row) -> Row:
    """As verl's examples write a row."""
    turns = [*before, {"role": "user", "content": row["question"]}]
    truth = {"style": "rule", "ground_truth": row["answer"]}
    extra = {"ability": "math", "extra_info": {"index": 0}}
    return {"data_source": "made", "prompt": turns, "reward_model": truth, **extra}


FORMS: dict[str, Callable[[Row], Row]] = {
    "gsm8k": lambda row: row | {"answer": f"So 1 + 1 = <<1+1=2>>2.\n#### {row['answer']}"},
    "verl": verl,
    "verl, the truth as text": lambda row: verl(row) | {"reward_model": json.dumps(verl(row)["reward_model"])},
    "a list as text": lambda row: verl(row | {"answer": json.dumps([row["answer"]])}),
    "a list as Python writes it": lambda row: verl(row | {"answer": repr([row["answer"]])}),
    "tags": lambda row: row | {"answer": f"<answer> {row['answer']} </answer>"},
    "trl": lambda row: {"prompt": verl(row)["prompt"], "solution": f"${row['answer']}$"},
    "trl, plain": lambda row: {"prompt": row["question"], "solution": row["answer"]},
    "parts": lambda row: {
        "prompt": [{"role": "user", "content": [{"type": "text", "text": row["question"]}]}], "answer": row["answer"]
    },
    "sharegpt": lambda row: {"prompt": [{"from": "human", "value": row["question"]}], "answer": row["answer"]},
    "messages as text": lambda row: {"prompt": json.dumps(verl(row)["prompt"]), "answer": row["answer"]},
    "indented": lambda row: {"prompt": json.dumps(verl(row)["prompt"], indent=1), "answer": row["answer"]},
    "hendrycks": lambda row: {"problem": row["question"], "solution": rf"We add.\nSo $\boxed{{{row['answer']}}}$."},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_layouts_are_found_by_name(form: str, tmp_path: Path) -> None:
    found = load(table(tmp_path / "set.parquet", [FORMS[form](row) for row in ROWS]))
    assert [(each.question, each.answer.strip("$")) for each in found] == [(r["question"], r["answer"]) for r in ROWS]
    assert all(not each.context for each in found)


def test_a_conversation_keeps_the_turns_before_the_question(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    path = table(tmp_path / "set.parquet", [verl(row, system) for row in ROWS])
    assert load(path)[0] == Problem("1", "0 + 1?", "1", {}, (system,))
    assert load(prepared(path) / "train.jsonl")[0].context == (system,)


@pytest.mark.parametrize(
    "last",
    [
        {"role": "tool", "content": "The answer is 1."},
        {"role": "user", "content": ""},
        {"role": "user", "content": [{"type": "image"}]},
        {"text": "1 + 1?"},
    ],
)
@pytest.mark.parametrize("form", [list, json.dumps, repr])
def test_a_conversation_that_asks_nothing_is_refused(
    form: Callable[[object], object], last: Row, tmp_path: Path
) -> None:
    rows = [{"prompt": form([{"role": "user", "content": "1 + 1?"}, last]), "answer": "2"}]
    with pytest.raises(DataError, match=r"set\.jsonl:1: prompt "):
        load(write_jsonl(tmp_path / "set.jsonl", rows))


ANSWERS: list[tuple[object, Any, str | None]] = [
    (pyarrow.int8(), 7, "7"), (pyarrow.uint64(), 2**60, str(2**60)), (pyarrow.float64(), 7.0, "7"),
    (pyarrow.float32(), 0.1, "0.1"), (pyarrow.decimal128(9, 2), decimal.Decimal("12.50"), "12.5"),
    (pyarrow.decimal128(9, 2), decimal.Decimal("7.00"), "7"), (pyarrow.bool_(), True, "True"),
    (pyarrow.list_(pyarrow.string()), ["7"], "7"), (pyarrow.list_(pyarrow.int64()), [7], "7"),
    (pyarrow.large_string(), "7", "7"), (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), "7", "7"),
    (pyarrow.string(), r"x \boxed{7}", "7"), (pyarrow.string(), "So 1,200 + 34.\n#### $1,234", "$1234"),
    (pyarrow.string(), "#### Step 1\nWe add.", "#### Step 1\nWe add."), (pyarrow.string(), "(1,234)", "(1,234)"),
    (pyarrow.string(), r'["\\frac{1}{2}"]', r"\frac{1}{2}"), (pyarrow.string(), r"['\frac{1}{2}']", r"\frac{1}{2}"),
    (pyarrow.string(), '["7", "8"]', None), (pyarrow.list_(pyarrow.string()), ["7", "8"], None),
    (pyarrow.list_(pyarrow.string()), [], None),
    (pyarrow.binary(), b"7", None), (pyarrow.date32(), datetime.date(2024, 1, 7), None),
    (pyarrow.struct({"value": pyarrow.string()}), {"value": "7"}, None), (pyarrow.float64(), float("inf"), None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "text"), ANSWERS)
def test_answers_of_every_type(kind: object, value: object, text: str | None, tmp_path: Path) -> None:
    schema = pyarrow.schema([("question", pyarrow.string()), ("answer", kind)])
    path = table(tmp_path / "set.parquet", [{"question": "?", "answer": value}], schema)
    if text is not None:
        assert load(path)[0].answer == text
    else:
        with pytest.raises(DataError, match=r"row 1: answer is (a list|an object|of type|a text of a list)"):
            load(path)


def test_columns_of_a_table_can_be_written_as_json(tmp_path: Path) -> None:
    row = ROWS[0] | {"made": datetime.date(2024, 1, 7), "share": decimal.Decimal("0.5"), "raw": {"picture": [b"1"]}}
    [problem] = load(table(tmp_path / "set.parquet", [row]))
    assert json.loads(json.dumps(problem.columns))["made"] == "2024-01-07"


@pytest.mark.parametrize(
    ("level", "kept"),
    [("Level 5", True), ("5", True), (5, True), ("lvl-5", True), ("AMC level 5", True), ("45/9", True),
     ("Level 6", False), ("Level ?", None), ("hard", None), (None, None)],
)  # fmt: skip
def test_levels_as_people_write_them(level: object, kept: bool | None, tmp_path: Path) -> None:
    rows = [row | {"level": level} for row in ROWS[:1]] + [row | {"level": 5} for row in ROWS[1:]]
    out = prepared(write_jsonl(tmp_path / "set.jsonl", rows), "--difficulty", "4", "5")
    counts = json.loads((out / "manifest.json").read_text())["counts"]
    assert counts["kept"] == (4 if kept else 3)
    reason = "level is a text, expected a number" if level else "difficulty_missing"
    assert counts["reasons"] == ({} if kept else {"difficulty_outside": 1} if kept is False else {reason: 1})


# Nothing in silence.


@pytest.mark.parametrize("sentinel", ["proof", "Proof.", r"\text{proof}", "notfound", "None", "N/A", "", "  ", None])
def test_a_sentinel_is_dropped_and_counted(
    sentinel: object, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = write_jsonl(tmp_path / "set.jsonl", [row | {"answer": sentinel} for row in ROWS[:2]] + ROWS[2:])
    assert [problem.id for problem in load(path)] == ["3", "4"]
    assert "2 rows" in caplog.text
    prepared(path)
    assert "removed        2  answer_" in capsys.readouterr().out


@pytest.mark.parametrize("count", [3, 4])
def test_a_source_that_cannot_be_read_ends_with_the_reasons(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "set.jsonl", [row | {"answer": "proof"} for row in ROWS[:count]] + ROWS[count:])
    said = refused(capsys, "data", "prepare", "--source", path, "--out", tmp_path / "out")
    assert f"{count} answer_sentinel" in said
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match=f"{count} answer_sentinel"):
        load(path)


def test_fields_are_named_where_they_have_other_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"input": {"text": row["question"]}, "target": row["answer"], "hardness": 3} for row in ROWS]
    source = write_jsonl(tmp_path / "set.jsonl", rows)
    assert "'question'" in refused(capsys, "data", "prepare", "--source", source, "--out", tmp_path / "out")
    named = ("--question-key", "input.text", "--answer-key", "target", "--difficulty-key", "hardness")
    assert len(load(prepared(source, *named, "--difficulty", "3", "3") / "train.jsonl")) == 4


# Training.


def test_training_reads_a_table_by_nested_fields(tmp_path: Path) -> None:
    from tests.local.tiny import configured

    for split, rows in (("train", ROWS[:3]), ("test", ROWS[3:])):
        table(tmp_path / f"set/{split}.parquet", [verl(row) for row in rows])
    keys = ("data.question_key=prompt", "data.answer_key=reward_model.ground_truth")
    data = configured(tmp_path / "run", *keys).config.data
    assert [problem.answer for problem in problems_of(data, tmp_path / "set", "data.train")] == ["1", "2", "3"]
    assert [problem.answer for problem in problems_of(data, tmp_path / "set", "evaluation.benchmarks.a")] == ["4"]
    usual = write_jsonl(tmp_path / "b.jsonl", ROWS)
    assert len(problems_of(data, usual, "evaluation.benchmarks.b")) == 4
    plain = configured(tmp_path / "run").config.data
    with pytest.raises(DataError, match=r"data\.question_key=prompt data\.answer_key=reward_model\.ground_truth"):
        problems_of(plain, tmp_path / "set", "data.train")


def test_problems_without_answers_are_those_of_an_environment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.local.tiny import configured

    games = write_jsonl(tmp_path / "games.jsonl", [{"prompt": "Play."}, {"prompt": "Play."}])
    keys = ("data.question_key=prompt", "environment=game.py:Game", "reward=environment")
    with pytest.raises(DataError, match=r"no field 'answer'.* read none: data\.answer_key=null"):
        problems_of(configured(tmp_path / "run", *keys).config.data, games, "data.train")
    data = configured(tmp_path / "run", *keys, "data.answer_key=null").config.data
    for key in ("data.train", "evaluation.benchmarks.a"):
        assert [(problem.question, problem.answer) for problem in problems_of(data, games, key)] == [("Play.", "")] * 2
    assert not caplog.records  # games of their own, no repeats


SOLUTION = "He had three cows and then he bought four more at the market, so that in the end he had seven cows."


def test_worked_solutions_are_no_references(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from tests.local.tiny import assets

    worked = write_jsonl(tmp_path / "worked.jsonl", [row | {"answer": SOLUTION} for row in ROWS])
    few = write_jsonl(tmp_path / "few.jsonl", [ROWS[0] | {"answer": SOLUTION}, *ROWS[1:]])
    check = ["config", "check", assets().config]
    assert "4 of 4" in refused(capsys, *check, f"data.train={worked}")
    assert entry_point([*map(str, check), f"data.train={few}"]) == 0
    benchmark = f"evaluation.benchmarks={{a: {worked}}}"
    assert "4 of 4" in refused(capsys, *check, f"data.train={few}", benchmark)
    sentences = [row | {"answer": f"The final answer is {place}."} for place, row in enumerate(ROWS, start=1)]
    assert "4 of 4" in refused(capsys, *check, f"data.train={write_jsonl(tmp_path / 'sentences.jsonl', sentences)}")
    options = write_jsonl(tmp_path / "o.jsonl", [row | {"choices": ["a cat", "a dog"], "answer": "B"} for row in ROWS])
    check = [*map(str, check), f"data.train={options}", "data.prompt_template="]
    assert "options that the questions do not show" in refused(capsys, *check[:-1], f"{check[-1]}'{{question}}'")
    assert entry_point([*check[:-1], f"{check[-1]}'{{question}} {{choices}}'"]) == 0
    evaluate = ["evaluate", assets().student, "--benchmarks", worked, "--max-tokens", 3, "--engine", "transformers"]
    assert "4 of 4" in refused(capsys, *evaluate, "--out", tmp_path / "e")
    prepared(worked)
    assert "cannot judge 4 of 4" in caplog.text  # another reward than the verifier's may read them


@pytest.mark.parametrize(
    ("row", "warned"),
    [
        ({"options": "A) a cat B) a dog"}, "do not show their field"),
        ({"options": ["a cat", "a dog"], "question": "Which barks? A) a cat B) a dog"}, ""),
        ({"options": None, "answer": "a dog"}, ""),
        ({"body": "One is a cat, one is a dog."}, "'{body} {question}'"),
        ({"Body": "Which barks?", "answer": "a dog"}, ""),
        ({"question": "Which? Give the answer after ####."}, "after ####"),
    ],
)  # fmt: skip
def test_questions_without_their_options_and_with_other_marks_are_named(
    row: Row, warned: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    rows = [{"question": "Which barks?", "answer": "B"} | row]
    check_references("set", load(write_jsonl(tmp_path / "set.jsonl", rows)))
    assert warned in caplog.text if warned else not caplog.text


def test_problems_that_differ_in_their_body_are_no_duplicates(tmp_path: Path) -> None:
    rows = [{"question": "How many are left?", "answer": "3", "body": f"Tom had {count} pears."} for count in (4, 5, 5)]
    assert len(load(prepared(write_jsonl(tmp_path / "set.jsonl", rows)) / "train.jsonl")) == 2


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["a cat", "a dog"], "A) a cat\nB) a dog"), (["A)a cat", "B)a dog"], "A)a cat\nB)a dog"),
        (["U.S.", "U.K."], "A) U.S.\nB) U.K."), ([1, 2.5], "A) 1\nB) 2.5"),
        ({"A": "a cat", "B": "a dog"}, "A) a cat\nB) a dog"),
        ({"label": ["1", "2"], "text": ["a cat", "a dog"]}, "1) a cat\n2) a dog"),
        ("A) {question} B) b", "A) {question} B) b"), (None, ""), ([], ""), (["a cat", None], None),
    ],
)  # fmt: skip
def test_a_prompt_shows_the_options(options: object, shown: str | None) -> None:
    problem = Problem("1", "Which barks?", "B", {"question": "Which barks?", "options": options})
    with nullcontext() if shown is not None else pytest.raises(DataError, match="options"):
        assert problem.turn("{question} {options}") == f"Which barks? {shown}"


def test_prepare_carries_options_and_names_questions_without_them(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = write_jsonl(tmp_path / "set.jsonl", [row | {"choices": ["a cat", "a dog"]} for row in ROWS])
    problem = load(prepared(source) / "train.jsonl")[0]
    assert problem.columns["choices"] == ["a cat", "a dog"]
    assert problem.turn("{question}\n{choices}") == f"{problem.question}\nA) a cat\nB) a dog"
    assert problem.turn(r"{question} \boxed{answer}") == rf"{problem.question} \boxed{{answer}}"
    assert "do not show their field" in caplog.text
    caplog.clear()
    check_references("set", [replace(problem, answer="B")], template="{question} {choices}")
    assert not caplog.text


def test_a_run_trains_on_a_folder_of_tables(tmp_path: Path) -> None:
    """From the folder to a step; its files are hashed, so that a resume on other rows is refused."""
    from tests.local.tiny import run

    table(tmp_path / f"set/main/test-{SHARD}", [{"question": "3", "answer": "#### 3"}])
    for number in range(2):
        rows = [{"question": str(n), "answer": f"So\n#### {n}"} for n in (number, number + 2)]
        table(tmp_path / f"set/main/train-0000{number}-of-00002.parquet", rows)
    source = f"data.train={tmp_path / 'set'}"
    folder = run(tmp_path / "run", source, f"evaluation.benchmarks={{held: {tmp_path / 'set'}}}", "train.steps=1")
    hashes = json.loads((folder / "provenance.json").read_text())["sha256"]
    assert {name for name in hashes if name.startswith(("train", "bench"))} == {
        "train/0-train-00000-of-00002.parquet", "train/1-train-00001-of-00002.parquet", "benchmark held"
    }  # fmt: skip
