"""What the screening finds, on made and on real benchmark problems."""

from __future__ import annotations

import pytest

from nemo_uecr.data.benchmarks import LoadedBenchmark, load_benchmark
from nemo_uecr.data.problems import Problem
from nemo_uecr.data.screening import NgramIndex, Screen, Text
from tests.data.made import FOLDER, needs_real_files
from tools.screen_recall import HELD_OUT, REWRITES, false_findings, planted_recall


@pytest.mark.parametrize(
    "other",
    [
        "FIND $X^2 + \\FRAC{1}{2}$ if x \u2264 3.",
        "find $x^2+\\dfrac{1}{2}$ if $x\\le 3$",
        "Find  \\(x^2 + \\tfrac{1}{2}\\)\n if \\(x \\leq 3\\)!?".replace("!", ""),
        "F ind $x^ 2+\\frac {1} {2}$ i f $x \\leqslant 3$.",
        "Find \\displaystyle $\\left(x^2 + \\frac{1}{2}\\right)$ if \uff58 \u2264 3.",
    ],
)
def test_spellings_of_one_problem_have_one_key(other: str) -> None:
    key = Text.of("Find $x^2 + \\frac{1}{2}$ if $x \\leq 3$.").key
    assert Text.of(other).key == key == "findx^2+frac12ifx<=3"


def test_signs_and_numbers_tell_problems_apart() -> None:
    keys = {Text.of(text).key for text in ("Find $x+1$", "Find $x-1$", "Find $x+11$", "Find $x>1$")}
    assert len(keys) == 4
    found = Text.of("The price is 1,250.50 dollars, or $1{,}000$!").words
    assert found == ("the", "price", "is", "1250.50", "dollars", "or", "1000")


@pytest.mark.parametrize(
    ("target", "order", "words", "containment"),
    [
        ("abcdef", 2, "xabcy", 2 / 4),  # ab bc cd de ef and xa ab bc cy: 2 shared, the smaller set has 4
        ("abcdef", 2, "pqr", None),
        ("abcdefghi", 8, "cdefg", 1.0),  # shorter than an n-gram, but a piece of the target
        ("abcdefghi", 8, "cde", None),  # too short
        ("abcdefghi", 8, "cdfeg", None),
    ],
)
def test_containment_by_hand(target: str, order: int, words: str, containment: float | None) -> None:
    nearest = NgramIndex([list(target)], order=order).nearest(list(words))
    assert nearest == (None if containment is None else (containment, 0))


PROBLEM = "Compute the sum $x \\times \\frac{1}{2}$ over all the positive cases x of that population."


@pytest.mark.parametrize(
    "other",
    [
        PROBLEM.replace("Compute", "Com pute").replace("\\times", "\\tim es").replace("\\frac", "\\fr ac"),
        " ".join(PROBLEM),
        PROBLEM.replace("po", "p\u00ado\u200b"),  # soft hyphens and blanks without width
        PROBLEM.translate(
            {
                ord(latin): cyrillic
                for latin, cyrillic in zip("aeopcx", "\u0430\u0435\u043e\u0440\u0441\u0445", strict=True)
            }
        ),
    ],
)
def test_a_disguised_problem_is_the_same(other: str) -> None:
    found = Screen([LoadedBenchmark("b", (Problem("1", PROBLEM, "0"),), (), None)]).find(Text.of(other))
    assert (found.method, found.certain) == ("exact", True)


@needs_real_files
def test_rewritten_aime_and_amc_problems_are_found_and_others_left_alone() -> None:
    screened = [load_benchmark(f"{name}={FOLDER}/{name}.jsonl") for name in ("aime24", "amc23")]
    for name, counts in planted_recall(screened, REWRITES, None).items():
        assert counts.found == counts.removed + counts.held >= 0.98 * counts.texts, name
        if name != "reworded":
            assert counts.removed >= 0.97 * counts.texts, name
    clean = [load_benchmark(str(FOLDER / f"{name}.jsonl")) for name in ("math500", "gsm8k_test")]
    for name, counts in false_findings(screened, clean, None).items():
        assert counts.removed == 0, name
        assert counts.held <= 0.01 * counts.texts, name


@needs_real_files
@pytest.mark.parametrize("name", ["aime24", "gsm8k_test"])
def test_rewritings_on_which_nothing_was_tuned_are_found(name: str) -> None:
    for rewrite, counts in planted_recall([load_benchmark(str(FOLDER / f"{name}.jsonl"))], HELD_OUT, None).items():
        assert counts.found >= (1.0 if name == "aime24" else 0.99) * counts.texts, rewrite
