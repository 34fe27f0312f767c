"""Steps of responses, and the tokens of a step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.audit.segment import NO_STEP, is_reasoning_free, segment, token_steps
from nemo_uecr.errors import DataError
from tests.audit.made import TOKENIZER, encoded


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
    assert [step.text(text) for step in segment(text)] == steps


@given(st.text(alphabet="ab1.!?\n $\\()[]-:S tep2", max_size=60))
def test_steps_tile_the_text(text: str) -> None:
    steps = segment(text)
    assert (not steps) == (not text.strip())
    if steps:
        assert steps[0].start <= len(text) - len(text.lstrip())
        assert steps[-1].end == len(text)
        assert all(left.end == right.start for left, right in itertools.pairwise(steps))
        assert all(step.text(text) for step in steps)


@pytest.mark.parametrize(
    ("text", "free"),
    [("\\boxed{6}", True), (" $\\boxed{\\frac{1}{2}}$.\n", True), ("", True), ("So \\boxed{6}", False), ("6", False)],
)
def test_reasoning_free(text: str, free: bool) -> None:
    assert is_reasoning_free(text) is free


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


def test_another_tokenizer_is_refused() -> None:
    with pytest.raises(DataError, match="expected the tokenizer that the response was sampled with"):
        token_steps("abc", segment("abc"), [0], Pieces([b"x"]))
