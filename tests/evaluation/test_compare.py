"""Paired comparison on hand values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.evaluation.compare import differences_of
from nemo_uecr.evaluation.samples import summarise
from nemo_uecr.generation.prompts import ChatSettings
from nemo_uecr.responses.table import sampled_tokens, write_responses


def sample_file(path: Path, rows: list[list[int]], answer: str = "a", benchmark: str = "x", asked: str = "") -> Path:
    """Samples of the problems of one benchmark by their rewards; all ask the same where it is given."""
    samples = [
        {
            "benchmark": benchmark,
            "problem": f"p{row}",
            "sample": k,
            "question": asked or f"q{row}",
            "asked": asked or f"q{row}",
            "answer": answer,
            "correct": each > 0,
        }
        for row, values in enumerate(rows)
        for k, each in enumerate(values)
    ]
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    write_responses(path, columns, sampled_tokens([[1]] * len(samples)), about={})
    return path


def evaluation(folder: Path, rows: list[list[int]], problems: int) -> Path:
    """An evaluation folder whose settings name so many problems of two samples; unfinished where they are more."""
    folder.mkdir()
    sample_file(folder / ("responses.parquet" if len(rows) == problems else "parts/part-000000.parquet"), rows)
    sets = {"x": {"problems": problems, "row_set": "5f", "revision": None}}
    (folder / "settings.json").write_text(json.dumps({"samples": 2, "seed": 1, "benchmarks": sets}), encoding="utf-8")
    return folder


def test_files_of_two_checkpoints_and_finished_evaluations(tmp_path: Path) -> None:
    rows = [[1, 0], [0, 0]], [[1, 1], [0, 1]]
    files = [sample_file(tmp_path / f"{name}.parquet", each) for name, each in zip("ab", rows, strict=True)]
    folders = [evaluation(tmp_path / name, each, 2) for name, each in zip("ab", rows, strict=True)]
    for first, second in (files, folders):
        found = differences_of(first, second, seed=0)
        assert found["x"].difference == pytest.approx(0.5)  # (1/2 + 1/2)/2
        assert found["average"] == found["x"]


def test_an_unfinished_evaluation_is_refused(tmp_path: Path) -> None:
    """One problem of three is not there; the folder above is none at all."""
    first, second = (evaluation(tmp_path / name, [[1, 0], [0, 1]], size) for name, size in (("a", 2), ("b", 3)))
    with pytest.raises(DataError, match=r"expected one of .*/a"):
        differences_of(tmp_path, first, seed=0)
    for pair in ((first, second), (second, first)):
        with pytest.raises(DataError, match="not finished, it has 4 of 6 samples"):
            differences_of(*pair, seed=0)


@pytest.mark.parametrize(("rows", "answer"), [([[1, 0], [0, 1]], "7"), ([[1, 0], [0]], "a")])
def test_other_problems_or_numbers_of_samples_are_refused(tmp_path: Path, rows: list[list[int]], answer: str) -> None:
    first = sample_file(tmp_path / "a.parquet", [[1, 0], [0, 1]])
    other = sample_file(tmp_path / "b.parquet", rows, answer)
    with pytest.raises(DataError, match=r"differ in problem 'p\d' of x"):
        differences_of(first, other, seed=0)
    sample_file(other, rows, answer, "y")
    with pytest.raises(DataError, match=r"benchmarks x, .* y;"):
        differences_of(first, other, seed=0)


def test_problems_that_repeat_a_question_are_one(tmp_path: Path) -> None:
    """Eight problems on which the second wins are evidence, and one question that is asked eight times is none."""
    pairs = {
        asked: [sample_file(tmp_path / f"{asked}{n}.parquet", [[n]] * 8, asked=asked) for n in (0, 1)]
        for asked in ("", "q")
    }
    found = [differences_of(*files, seed=0) for files in pairs.values()]
    assert [each["average"] for each in found] == [each["x"] for each in found]
    apart, repeated = (each["x"] for each in found)
    assert (apart.better, apart.problems, repeated.better, repeated.problems) == (8, 8, 1, 1)
    assert apart.difference == repeated.difference == 1.0
    assert apart.p_value < 0.01
    assert repeated.p_value == 1.0
    assert (repeated.low, repeated.high) == (-1.0, 1.0)


def test_a_result_takes_problems_that_repeat_a_question_as_one() -> None:
    """Six questions, three times each: in the interval of their benchmark and in that of the average."""

    def result(questions: int) -> list[dict[str, float]]:
        cells = [(f"p{row:02}", k, (row % 6 + k) % 3 == 0, f"q{row % questions}") for row in range(18) for k in (0, 1)]
        columns = dict(zip(("problem", "sample", "correct", "asked"), map(list, zip(*cells, strict=True)), strict=True))
        found = summarise({"benchmark": ["x"] * len(cells), **columns})
        return [found["sets"]["x"], found["average"]]

    for repeated, apart in zip(result(6), result(18), strict=True):
        assert repeated["avg"] == apart["avg"]
        assert repeated["high"] - repeated["low"] > 1.3 * (apart["high"] - apart["low"])


def test_an_evaluation_from_before_a_key_existed_is_still_compared(tmp_path: Path) -> None:
    """Its record has no dates and no arguments of chat templates, as one that was given none today."""
    before, today = (evaluation(tmp_path / name, [[1, 0], [0, 1]], 2) for name in "ab")
    chat = ChatSettings("{question}", None, thinking=False)
    for folder, values in ((before, {"template": "{question}", "system": None, "thinking": False}), (today, chat)):
        record = json.loads((folder / "settings.json").read_text())
        record["chat"] = values.recorded() if isinstance(values, ChatSettings) else values
        (folder / "settings.json").write_text(json.dumps(record))
    assert differences_of(before, today, seed=0)["x"].difference == 0.0
    assert set(replace(chat, prompt_date="2026-02-03").recorded()) == {"template", "system", "thinking", "prompt_date"}
