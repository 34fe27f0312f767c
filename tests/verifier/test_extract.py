r"""The content of the last complete \boxed{...}."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.verifier.extract import MAX_ANSWER_CHARS, final_answer, last_boxed, opens_thought


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),  # escaped braces do not count
        (r"\boxed{a\\}", r"a\\"),  # a line break before the closing brace
        (r"\boxed{1} and \boxed{2", None),  # cut off while it changes its answer
        (r"\boxed{12}. Yes: \boxed{1", "12"),  # cut off while it repeats its answer
        (r"\boxed{\frac{1}{2}} and \boxed{\frac{1} {", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{", "1"),
        (r"\boxed{ \boxed{7} }", "7"),
        (r"\boxed{6 \boxed{7}}", r"6 \boxed{7}"),  # two answers
        (r"\boxed{6} \boxed{\boxed{7}}", "7"),
        (r"\boxed{6 \boxed{7}", "7"),
        (r"\boxed{7 \boxed{8", None),
        (r"\\boxed{3}", "3"),  # over-escaped
        (r"\boxed{1} \boxed{}", ""),  # the last complete one is empty
        (r"we get \boxed{42}, and in the end $\boxed {3}$", "3"),
        ("\\boxed{1}, so \\boxed\n{42}", "42"),
        (r"\fbox{\boxed {42}}", "42"),
        (r"\boxed{1}, so $\boxed7$", "7"),
        (r"\boxed{1}, so \boxed -1,000.5, as said", "-1,000.5"),
        (r"\boxed{1}, so \boxed \frac{1}{2}$", r"\frac{1}{2}"),
        (r"\boxed{1}, so \boxed (3, 4).", "(3, 4)"),
        (r"\boxed{1}, so $\boxed 2\sqrt{3}$", r"2\sqrt{3}"),
        (r"\boxed{7} is in a \boxed as asked; I used \boxed.", "7"),  # a word, no box
        (r"\boxed{3} or \boxed{7}", r"3 \text{ or } 7"),
        (r"x=\boxed{3} \text{ or } x=\boxed{7}", r"3 \text{ or } 7"),
        (r"\boxed{3}, perhaps \boxed{7}", r"3 \text{ or } 7"),
        (r"\boxed{3}, or is it \boxed{7}?", r"3 \text{ or } 7"),
        (r"**\boxed{3}** (or **\boxed{7}**)", r"3 \text{ or } 7"),
        ("\\boxed{3}\n\nor\n\n\\boxed{7}", r"3 \text{ or } 7"),
        (r"\boxed{3} $\lor$ \boxed{7}", r"3 \text{ or } 7"),
        (r"\boxed{3} / \boxed{7}", r"3 \text{ or } 7"),
        (r"\boxed{3}. For odd or even n it is \boxed{7}", "7"),
        (r"\boxed{3}, \boxed{5} and \boxed{7}", "3, 5, 7"),
        (r"the roots are $\boxed{3}$ and $\boxed{5}$.", "3, 5"),
        (r"\boxed{3}\;\text{and}\;\boxed{5}", "3, 5"),
        (r"\boxed{3} and \boxed{3}", "3"),
        (r"\boxed{3}, so \boxed{5}", "5"),
        (r"\[\boxed{3}\] \[\boxed{5}\]", "5"),
        ("boxed{5}", None),
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
     r"\boxed{1}" * 110_000, r"\boxed{1}, " * 90_000, r"\boxed1" * 140_000, r"\boxed" + " " * 1_000_000,
     r"\boxed(" * 140_000, r"\boxed \frac{" * 70_000,
     r"\boxed{1}" + " and" * 250_000 + r"\boxed{2}", "<think>" * 140_000,
     r"\boxed{" * 70_000 + "}" * 70_000, "\\" * 999_994 + "boxed{"],
)  # fmt: skip
def test_a_megabyte_is_quick(text: str) -> None:
    started = time.process_time()
    final_answer(text, thinking=False)
    assert time.process_time() - started < 3.0  # linear: about 0.5 s; quadratic would be minutes


@pytest.mark.parametrize(
    ("text", "thinking", "answer"),
    [
        (r"<think> perhaps \boxed{12}; that fails, so", False, None),
        (r"<think>\boxed{12}</think> It is \boxed{13}.", False, "13"),
        (r"<think>\boxed{12}</think> I am sure.", False, None),
        (r"<think>1</think>\boxed{12}<think>2</think>\boxed{13}", False, "13"),
        (r"<think>1</think>\boxed{12}<think>no, \boxed{13}", False, None),
        (r"\boxed{12}</think>\boxed{13}", True, "13"),
        (r"perhaps \boxed{12}", True, None),
        (r"perhaps \boxed{12}", False, "12"),
        (r"[THINK]\boxed{12}", False, None),
        (r"<|begin_of_thought|>\boxed{12}<|end_of_thought|>\boxed{13}", False, "13"),
        (r"<|channel|>analysis<|message|>\boxed{12}<|end|><|channel|>final<|message|>\boxed{13}", False, "13"),
        (r"◁think▷\boxed{12}◁/think▷\boxed{13}", False, "13"),
        (r"<reasoning>\boxed{12}</reasoning> <answer>\boxed{13}</answer>", False, "13"),
    ],
)
def test_only_what_follows_a_finished_thought_counts(text: str, thinking: bool, answer: str | None) -> None:
    assert final_answer(text, thinking=thinking) == answer


def test_a_prompt_that_ends_in_an_opened_thought() -> None:
    assert opens_thought("<|im_start|>user\nWhat is 2+3?<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert not opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n")  # the mode without thinking
    assert not opens_thought("Think between <think> and </think>, then answer.")
    assert not opens_thought("")


def by_definition(text: str) -> str | None:
    """The definition, read off slowly: the last marker whose braces close, if none opens behind it."""
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
        else:
            so_far = "".join(text[start + 7 :].split())
            if found is not None and not "".join(found.split()).startswith(so_far):
                return None
    return found


@given(st.lists(st.sampled_from([r"\boxed{", "{", "}", r"\{", r"\}", "1", " "]), max_size=14).map("".join))
def test_against_the_definition(text: str) -> None:
    assert last_boxed(text) == by_definition(text)
