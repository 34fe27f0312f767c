"""What a judge of steps gets, and what is taken from them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nemo_uecr.audit.step_judge import Item, Labels, read_labels, write_items
from nemo_uecr.demo.judge import judge, main
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
        ({"labels": ["valid"]}, r"labels\.jsonl:1: labels are 1; expected a list of 2"),
        ({"labels": "valid"}, "labels are 'valid'; expected a list of 2"),
        ({"labels": ["valid", "wrong"]}, "label 'wrong'; expected one of valid, invalid, uncertain, not_reasoning"),
        ({"labels": ["valid", "invalid"], "first_error": 3}, "first_error is 3; expected a step's number from 1 to 2"),
        ({"labels": ["valid", "invalid"], "first_error": True}, "first_error is True"),
        ({"labels": ["valid", "invalid"], "first_error": 1}, "first_error 1 is labelled 'valid'; expected 'invalid'"),
        ({"item": "0", "labels": ["valid", "valid"]}, "item '0' is not in"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        answered(tmp_path, row)


@pytest.mark.parametrize("name", ["item", "response"])
def test_the_key_names_each_item_and_response_once(tmp_path: Path, name: str) -> None:
    """Of two lines of one item the last would give the label to another response."""
    write_items(ITEMS[:2], tmp_path, seed=1)
    key = lines(tmp_path / "key.jsonl")
    key[1][name] = key[0][name]
    (tmp_path / "key.jsonl").write_text("".join(json.dumps(row) + "\n" for row in key))
    text = json.dumps({"item": key[0]["item"], "labels": ["valid", "valid"]}) + "\n"
    (tmp_path / "labels.jsonl").write_text(text)
    with pytest.raises(DataError, match=rf"key\.jsonl:2: {name} .* stands twice; expected each once"):
        read_labels(tmp_path / "labels.jsonl", tmp_path / "key.jsonl")


def test_an_item_stands_once(tmp_path: Path) -> None:
    write_items(ITEMS[:1], tmp_path, seed=1)
    (row,) = lines(tmp_path / "steps.jsonl")
    text = json.dumps({"item": row["item"], "labels": ["valid", "valid"]}) + "\n"
    (tmp_path / "labels.jsonl").write_text(2 * text)
    with pytest.raises(DataError, match=r"labels\.jsonl:2: item .* stands twice"):
        read_labels(tmp_path / "labels.jsonl", tmp_path / "key.jsonl")


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


def test_the_demo_judges_labels_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    """A file of its own under the name: whoever has the earlier one open still reads all of it."""
    item = {"item": 0, "question": "Start with 13: -2 *3 = ?", "steps": [{"text": "13-2=11"}]}
    (tmp_path / "steps.jsonl").write_text(json.dumps(item) + "\n")
    out, earlier = tmp_path / "labels.jsonl", tmp_path / "earlier.jsonl"
    out.write_text("earlier\n")
    os.link(out, earlier)
    main(tmp_path / "steps.jsonl", out)
    assert lines(out) == [{"item": 0, "labels": ["valid"], "first_error": None}]
    assert earlier.read_text() == "earlier\n"
