"""What a judge of steps gets, and what is taken from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.audit.judging import Item, Labels, read_labels, write_items
from nemo_uecr.demo.judge import judge
from nemo_uecr.errors import DataError

ITEMS = [Item(f"step 0/made/p{i}/{i}", f"question {i}", str(i), f"one {i}\ntwo {i}") for i in range(20)]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_judge_is_blind(tmp_path: Path) -> None:
    """Problem, answer and numbered steps in another order, and no word on where they come from."""
    assert write_items(ITEMS, tmp_path, seed=1) == 40
    shown, key = lines(tmp_path / "steps.jsonl"), lines(tmp_path / "key.jsonl")
    assert all(set(row) == {"item", "question", "answer", "steps"} for row in shown)
    assert all(set(step) == {"number", "text"} for row in shown for step in row["steps"])
    assert "step 0" not in (tmp_path / "steps.jsonl").read_text()
    assert [row["question"] for row in shown] != [item.question for item in ITEMS]
    assert [row["item"] for row in shown] == [row["item"] for row in key]
    by_item = {row["item"]: row["response"] for row in key}
    for row in shown:
        number = row["question"].split()[-1]
        assert by_item[row["item"]] == f"step 0/made/p{number}/{number}"
        assert row["steps"] == [{"number": 1, "text": f"one {number}"}, {"number": 2, "text": f"two {number}"}]
    before = (tmp_path / "steps.jsonl").read_bytes()
    write_items(ITEMS, tmp_path, seed=1)
    assert (tmp_path / "steps.jsonl").read_bytes() == before


def answered(tmp_path: Path, *rows: dict) -> dict[str, Labels]:
    write_items(ITEMS[:2], tmp_path, seed=1)
    names = [row["item"] for row in lines(tmp_path / "steps.jsonl")]
    full = [{"item": names[number]} | row for number, row in enumerate(rows)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in full))
    return read_labels(tmp_path / "labels.jsonl", tmp_path / "key.jsonl")


def test_labels(tmp_path: Path) -> None:
    found = answered(tmp_path, {"labels": ["valid", "invalid"], "first_error": 2}, {"labels": ["uncertain"] * 2})
    key = lines(tmp_path / "key.jsonl")
    assert found[key[0]["response"]] == Labels(("valid", "invalid"), 1)
    assert found[key[1]["response"]] == Labels(("uncertain", "uncertain"), None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"labels": ["valid"]}, r"labels\.jsonl:1: 1 labels; expected 2, one a step"),
        ({"labels": ["valid", "invalid"], "first_error": 1}, "first_error is 1; expected the first step labelled"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        answered(tmp_path, row)


@pytest.mark.parametrize(
    ("steps", "labels", "first"),
    [
        (["13-2=11", "11*3=33", "33-8=25", "\\boxed{25}"], ["valid"] * 3 + ["not_reasoning"], None),
        (["13-2=12", "12*3=36", "36-8=28"], ["invalid", "valid", "valid"], 1),  # judged by the value that stands there
        (["13-2*3=33", "33-8=25"], ["invalid", "valid"], 1),  # two operations at once skip a step
        (["13-2=11", "11-8=3"], ["valid", "invalid"], 2),  # not the next operation
        (["So:", "13 - 2 = 11"], ["not_reasoning", "valid"], None),
        (["13-2=11", "11*3=33", "33-8=25", "25+1=26"], ["valid"] * 3 + ["invalid"], 4),  # beyond the problem's end
    ],
)
def test_the_demo_judge(steps: list[str], labels: list[str], first: int | None) -> None:
    assert judge("Start with 13: -2 *3 -8 = ?", steps) == (labels, first)
