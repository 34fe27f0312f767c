r"""The content of the last complete \boxed{...}."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.verifier.extract import MAX_ANSWER_CHARS, last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"so \boxed{ 5 }.", "5"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\sqrt{\frac{1}{\text{a}}}}", r"\sqrt{\frac{1}{\text{a}}}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),  # escaped braces do not count
        (r"\boxed{\}}", r"\}"),
        (r"\boxed{a\\}", r"a\\"),  # a line break before the closing brace
        (r"\boxed{1} and \boxed{2", "1"),  # cut off: the earlier one was given
        (r"\boxed{1} and \boxed{\frac{2}{3}", "1"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{ \boxed{7} }", "7"),
        (r"\boxed{6 \boxed{7}}", r"6 \boxed{7}"),  # two answers
        (r"\boxed{6} \boxed{\boxed{7}}", "7"),
        (r"\boxed{6 \boxed{7}", "7"),
        (r"\boxed{7 \boxed{8", None),
        (r"{ \boxed{3}", "3"),
        (r"} } \boxed{3} }", "3"),
        (r"$$\boxed{3}$$", "3"),
        (r"\\boxed{3}", "3"),  # over-escaped
        (r"\boxed{}", ""),
        (r"\boxed{1} \boxed{}", ""),  # the last complete one is empty
        (r"\boxed5", None),
        ("boxed{5}", None),
        (r"\boxed", None),
        (r"\boxed{", None),
        ("", None),
        ("\\", None),
        ("\\boxed{a\nb}", "a\nb"),
        (r"\boxed{" + "x" * MAX_ANSWER_CHARS + "}", "x" * MAX_ANSWER_CHARS),
        (r"\boxed{1}\boxed{" + "x" * (MAX_ANSWER_CHARS + 1) + "}", "1"),  # no answer is that long
    ],
)
def test_extraction(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    "text",
    [r"\boxed{" * 150_000, "{" * 1_000_000, "}" * 1_000_000, r"\boxed{" + "{" * 1_000_000, "\\" * 1_000_000,
     r"\boxed{1}" * 110_000, r"\boxed{" * 70_000 + "}" * 70_000, "\\" * 999_994 + "boxed{"],
)  # fmt: skip
def test_a_megabyte_is_quick(text: str) -> None:
    started = time.process_time()
    last_boxed(text)
    assert time.process_time() - started < 3.0  # linear: about 0.5 s; quadratic would be minutes


def by_definition(text: str) -> str | None:
    """The definition, read off slowly: the last marker whose braces close."""
    found = None
    for start in range(len(text)):
        if not text.startswith("\\boxed{", start):
            continue
        depth, place = 1, start + 7
        while place < len(text):
            if text[place] == "\\" and place + 1 < len(text):
                place += 2
                continue
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                found = text[start + 7 : place].strip()
                break
            place += 1
    return found


@given(st.lists(st.sampled_from([r"\boxed{", "{", "}", r"\{", r"\}", "1", " "]), max_size=14).map("".join))
def test_against_the_definition(text: str) -> None:
    assert last_boxed(text) == by_definition(text)
