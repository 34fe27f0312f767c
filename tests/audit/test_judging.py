"""The steps of a response, what a judge of steps gets, and what is taken from them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.audit.judging import NO_STEP, Labels, read_labels, segment, token_steps, write_steps
from nemo_uecr.errors import DataError
from tests.audit.made import TOKENIZER, Made, encoded, write_scores
from tests.local.tiny import records

MADE = [Made(f"p{i}", 0.0, [0.1], question=f"question {i}", response=f"one {i}\ntwo {i}") for i in range(20)]


def test_the_judge_is_blind(tmp_path: Path) -> None:
    """Problem, answer and numbered steps in another order, and no word on where they come from."""
    scores = write_scores(tmp_path, MADE)
    assert write_steps(scores, np.arange(20), tmp_path, seed=1) == 40
    shown, key = records(tmp_path / "steps.jsonl"), records(tmp_path / "key.jsonl")
    assert [row["question"] for row in shown] != [each.question for each in MADE]
    for row, own in zip(shown, key, strict=True):
        number = row["question"].split()[-1]
        steps = [{"number": 1, "text": f"one {number}"}, {"number": 2, "text": f"two {number}"}]
        assert row == {"item": own["item"], "question": f"question {number}", "answer": "1", "steps": steps}
        assert own == {"item": own["item"], "response": f"r{number}", "steps": 2}
    before = (tmp_path / "steps.jsonl").read_bytes()
    write_steps(scores, np.arange(20), tmp_path, seed=1)
    assert (tmp_path / "steps.jsonl").read_bytes() == before
    with pytest.raises(DataError, match=r"key\.jsonl"):  # whose verdicts would be lost without its key
        write_steps(scores, np.arange(20), tmp_path, seed=2)


def test_labels(tmp_path: Path) -> None:
    write_steps(write_scores(tmp_path, MADE[:2]), np.arange(2), tmp_path, seed=1)
    key = records(tmp_path / "key.jsonl")

    def answered(**row: Any) -> Labels:
        (tmp_path / "labels.jsonl").write_text(json.dumps({"item": key[1]["item"], **row}) + "\n")
        return read_labels(tmp_path / "labels.jsonl", tmp_path / "key.jsonl")[key[1]["response"]]

    assert answered(labels=["valid", "invalid"], first_error=2).first_error == 2
    assert answered(labels=["uncertain"] * 2).labels == ("uncertain", "uncertain")
    for faulty in ({"labels": ["valid"]}, {"labels": ["valid", "invalid"], "first_error": 1}):
        with pytest.raises(DataError, match=r"labels\.jsonl:1: "):
            answered(**faulty)


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


def spelled(*pieces: str) -> SimpleNamespace:
    """A tokenizer whose tokens 1, 2, ... are these texts; ``<0xE2>`` is a byte of a character. Token 0 is special."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import WordLevel

    backend = Tokenizer(WordLevel({piece: place for place, piece in enumerate(("<end>", *pieces))}, unk_token="<end>"))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return SimpleNamespace(backend_tokenizer=backend, all_special_ids=[0])


@pytest.mark.parametrize(
    ("pieces", "steps"),
    [
        # A line break belongs to the step before it, a word with a leading space to the step of the word, a token
        # across the border to the step that it begins in.
        (["a.", "\n", " B", "c.\n", "D"], [0, 0, 1, 1, 2]),
        # The three bytes of one sign are three tokens of its step, and the places behind it stay right.
        (["x", "\n", "<0xE2>", "<0x88>", "<0x91>", "y"], [0, 0, 1, 1, 1, 1]),
    ],
)
def test_a_token_belongs_to_the_step_of_its_first_letter(pieces: list[str], steps: list[int]) -> None:
    tokenizer, ids = spelled(*pieces), [*range(1, len(pieces) + 1), 0]
    text = tokenizer.backend_tokenizer.decode(ids[:-1])
    assert token_steps(text, segment(text), ids, tokenizer).tolist() == [*steps, NO_STEP]
    with pytest.raises(DataError, match="token 0"):
        token_steps(text, segment(text), ids[1:], tokenizer)


def test_a_real_tokenizer_and_a_cut_response() -> None:
    pieces = ("13-2=11\n", "11-8=4\n", "\\boxed{4}")
    text, ids = "".join(pieces), encoded("".join(pieces))
    whole = token_steps(text, segment(text), ids, TOKENIZER)
    decoded = [TOKENIZER.decode([ids[at] for at in np.flatnonzero(whole == number)]) for number in range(3)]
    assert (*decoded, whole[-1]) == (*pieces, NO_STEP)
    assert token_steps(text, segment(text), ids[:5], TOKENIZER).tolist() == whole[:5].tolist()


def test_a_newline_stands_between_turns_and_is_no_token() -> None:
    ids = TOKENIZER("1234", add_special_tokens=False)["input_ids"]
    assert token_steps("12\n34", [(0, 2), (3, 5)], ids, TOKENIZER).tolist() == [0, 0, 1, 1]
