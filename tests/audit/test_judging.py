"""The steps of a response, what a judge of steps gets, and what is taken from them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.audit.judging import (
    NO_STEP,
    Item,
    Labels,
    read_labels,
    segment,
    token_steps,
    write_items,
)
from nemo_uecr.study.judge import judge
from tests.audit.made import TOKENIZER, encoded

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
    first, second = (found[row["response"]] for row in key)
    assert (first.labels, first.first_error) == (("valid", "invalid"), 2)
    assert (second.labels, second.first_error) == (("uncertain", "uncertain"), None)


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


# Steps


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("1+1=2\n2*3=6\n\\boxed{6}", ["1+1=2", "2*3=6", "\\boxed{6}"]),
        ("First add. Then double it! Is it 6? Yes.", ["First add.", "Then double it!", "Is it 6?", "Yes."]),
        ("We use 3.14 and e.g. Euler. Then stop.", ["We use 3.14 and e.g. Euler.", "Then stop."]),
        ("Plan: 1. Add the two. 2. Double. (3) Stop.", ["Plan:", "1. Add the two.", "2. Double.", "(3) Stop."]),
        ("1. Add.\n2. Double.\n- Stop here.", ["1. Add.", "2. Double.", "- Stop here."]),
        ("Step 1: add Step 2: double", ["Step 1: add", "Step 2: double"]),
        ("So $x. Y = 2$ holds. Next \\(a. B\\) too.", ["So $x. Y = 2$ holds.", "Next \\(a. B\\) too."]),
        ("Thus \\[a\nb. C\\] ends.\n\n\nDone.", ["Thus \\[a\nb. C\\] ends.", "Done."]),
        ("See Fig. A and Eq. B by J. Smith. Good.", ["See Fig. A and Eq. B by J. Smith.", "Good."]),
        ("  \n one line", ["one line"]),
        (" \n\t ", []),
        ("", []),
    ],
)
def test_steps(text: str, steps: list[str]) -> None:
    assert [text[start:end].strip() for start, end in segment(text)] == steps


@given(st.text(alphabet="ab1.!?\n $\\()[]-:S tep2", max_size=60))
def test_steps_tile_the_text(text: str) -> None:
    steps = segment(text)
    assert (not steps) == (not text.strip())
    if steps:
        assert steps[0][0] <= len(text) - len(text.lstrip())
        assert steps[-1][1] == len(text)
        assert all(left[1] == right[0] for left, right in itertools.pairwise(steps))
        assert all(text[start:end].strip() for start, end in steps)


class Pieces:
    """A tokenizer whose tokens are given texts; bytes of one character are spread over tokens."""

    all_special_ids = (9,)

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def decode(self, ids: list[int]) -> str:
        return b"".join(self._pieces[each] for each in ids).decode("utf-8", errors="replace")


def test_a_token_belongs_to_the_step_of_its_first_letter() -> None:
    r"""``a.`` | ``\n`` | `` B`` | ``c.\n`` | ``D`` | end: the line break belongs to the step before it, a word with a
    leading space to the step of the word, a token across the border to the step that it begins in."""
    text = "a.\n Bc.\nD"
    found = token_steps(text, segment(text), [0, 1, 2, 3, 4, 9], Pieces([b"a.", b"\n", b" B", b"c.\n", b"D"]))
    assert found.tolist() == [0, 0, 1, 1, 2, NO_STEP]


def test_a_character_of_several_tokens() -> None:
    """The three bytes of a sign are three tokens: all belong to its step, and the places behind it stay right."""
    text = "x\n∑y"
    sign = "∑".encode()
    pieces = Pieces([b"x", b"\n", sign[:1], sign[1:2], sign[2:], b"y"])
    assert token_steps(text, segment(text), [0, 1, 2, 3, 4, 5], pieces).tolist() == [0, 0, 1, 1, 1, 1]


def test_a_real_tokenizer_and_a_cut_response() -> None:
    text = "13-2=11\n11-8=4\n\\boxed{4}"
    ids = encoded(text)
    whole = token_steps(text, segment(text), ids, TOKENIZER)
    assert whole[-1] == NO_STEP
    for number, expected in enumerate(("13-2=11\n", "11-8=4\n", "\\boxed{4}")):
        assert TOKENIZER.decode([ids[at] for at in np.flatnonzero(whole == number)]) == expected
    assert token_steps(text, segment(text), ids[:5], TOKENIZER).tolist() == whole[:5].tolist()
