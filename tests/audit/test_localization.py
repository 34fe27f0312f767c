"""The localization audit against a planted answer and against the paper's formulas written out slowly."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nemo_uecr.audit.judging import Labels
from nemo_uecr.audit.localization import candidates, items_to_judge, localization_audit, position
from nemo_uecr.audit.output import Audit
from nemo_uecr.audit.store import Scores
from nemo_uecr.core.records import Settings
from tests.audit.made import TOKENIZER, Text, encoded, write_texts

SETTINGS = Settings(alpha=1.0, rho=0.5, tau_delta=2.0, tau_entropy=0.7, std_floor=0.0, sample_std=False)
TEXT = "1+1=2\n2+2=5\n5+1=6\n\\boxed{6}"
LABELS = Labels(item="item", labels=("valid", "invalid", "valid", "not_reasoning"), first_error=2)
STEP = [0] * 6 + [1] * 6 + [2] * 6 + [3] * 3 + [-1]


def responses(problems: int = 3, *, seed: int = 0) -> list[Text]:
    """Groups of eight: six failed responses, one of them without reasoning, and two right ones."""
    dice = random.Random(seed)
    found = []
    for problem in range(problems):
        for number in range(8):
            text = "\\boxed{3}" if number == 5 else TEXT
            size = len(encoded(text))
            gap = tuple(dice.gauss(0, 1.5) for _ in range(size))
            entropy = tuple(dice.expovariate(1.5) for _ in range(size))
            found.append(Text(f"p{problem}", text, number >= 6, gap, entropy))
    return found


def audited(scores: Scores, **changes: int) -> Audit:
    labels = dict.fromkeys(labelled(scores), LABELS)
    arguments = {"checkpoint": 0, "shuffles": 20, "replicates": 200, "seed": 42} | changes
    return localization_audit(scores, labels, SETTINGS, TOKENIZER, **arguments)


def labelled(scores: Scores) -> list[str]:
    tokens = scores.tokens("student", 0)
    return [scores.responses.ids[row] for row in tokens.rows[candidates(scores, tokens)[0]]]


def test_who_is_a_candidate(tmp_path: Path) -> None:
    """Mixed groups of eight only; the failed ones that reason."""
    made = responses(2)
    made += [Text("flat", each.text, False, each.gap, each.entropy) for each in made[:8]]
    made += [Text("small", each.text, each.right, each.gap, each.entropy) for each in made[4:8]]
    scores = write_texts(tmp_path, made)
    _, counts = candidates(scores, scores.tokens("student", 0))
    assert counts == {"groups": 4, "mixed_groups_of_eight": 2, "incorrect_in_them": 12, "reasoning_free": 2}
    assert labelled(scores) == [f"p{p}/{8 * p + n}" for p in (0, 1) for n in range(5)]
    items = items_to_judge(scores, checkpoint=0, limit=4, seed=1)
    assert len(items) == 4
    assert items[0].response == TEXT


def test_a_shuffle_that_equals_the_original_reaches_it() -> None:
    # 0.3 and 0.2 are at least 0.2, 0.1 is not: 2 of 3, p = (2 + 1) / (3 + 1)
    found = position(np.asarray([0.1, 0.2, 0.3]), 0.2)
    assert (found["at_least_full"], found["p"]) == (2, 0.75)


def slow_weights(made: Text, *, entropy: tuple[float, ...] | None) -> list[float]:
    """eq:local-signal and eq:projection-weights for a negative task advantage, in plain Python."""
    d = [math.tanh(-gap / (2 * 2.0)) for gap in made.gap]
    c = [1.0] * len(d) if entropy is None else [math.exp(-value / 0.7) for value in entropy]
    mu = sum(x * y for x, y in zip(c, d, strict=True)) / sum(c)
    return [1 + 0.5 * 0.5 * x * (y - mu) for x, y in zip(c, d, strict=True)]


def slow_gap(weights: list[float], above: set[int], below: set[int]) -> float:
    def mean(steps: set[int]) -> float:
        chosen = [w for w, step in zip(weights, STEP, strict=True) if step in steps]
        return sum(chosen) / len(chosen)

    return mean(above) - mean(below)


def test_against_the_formulas_written_out(tmp_path: Path) -> None:
    made = responses()
    numbers = audited(write_texts(tmp_path, made)).numbers
    judged = [each for number, each in enumerate(made) if number % 8 < 5]
    for name, use in (("full ECR", True), ("no entropy", False)):
        weights = [slow_weights(each, entropy=each.entropy if use else None) for each in judged]
        gaps = [slow_gap(w, {1}, {0, 2}) for w in weights]
        first = [slow_gap(w, {1}, {0}) for w in weights]  # the valid step after the error does not count
        found = numbers["variants"][name]
        assert found["gap"]["value"] == pytest.approx(sum(gaps) / 15, abs=1e-7)  # scores are stored in float32
        assert found["first_error"]["value"] == pytest.approx(sum(first) / 15, abs=1e-7)
        assert found["positive"]["value"] == sum(gap > 0 for gap in gaps) / 15
        assert [each["gap"][name] for each in numbers["responses"]] == pytest.approx(gaps, abs=1e-7)
        assert found["budget_error"] <= 1e-14  # B_i = 1 in float64
    assert numbers["selection"]["eligible"] == 15
    assert numbers["responses"][0] | {"gap": None} == {
        "response": "p0/0", "invalid_tokens": 6, "valid_tokens": 12, "gap": None,
    }  # fmt: skip


def planted(tmp_path: Path) -> Scores:
    """The teacher dislikes the invalid step and likes the valid ones, surely; where it is unsure it dislikes both."""
    found = []
    for problem in range(12):
        for number in range(8):
            sure = [step == 1 or at % 2 == 0 for at, step in enumerate(STEP)]
            gap = tuple(2.0 if sure[at] and step != 1 else -2.0 for at, step in enumerate(STEP))
            entropy = tuple(0.0 if each else 2.0 for each in sure)
            found.append(Text(f"p{problem}", TEXT, number >= 4, gap, entropy))
    return write_texts(tmp_path, found)


def test_planted_positions_are_found(tmp_path: Path) -> None:
    """The teacher is sure of its dislike: the invalid step gets more blame than under any permutation."""
    numbers = audited(planted(tmp_path), shuffles=100).numbers
    full, shuffles = numbers["variants"]["full ECR"], numbers["shuffles"]
    assert full["positive"]["value"] == 1.0
    assert (shuffles["at_least_full"], shuffles["p"]) == (0, 1 / 101)
    assert full["gap"]["value"] > max(shuffles["gap"])
    assert len(shuffles["gap"]) == 100
    assert shuffles["mean"] == pytest.approx(numbers["variants"]["shuffled, mean"]["gap"]["value"], abs=1e-15)


def test_shuffles_keep_the_entropies_and_differ_between_responses(tmp_path: Path) -> None:
    """Twelve equal responses: with one permutation for all of them, every response would have the same gap."""
    scores = planted(tmp_path)
    one = audited(scores, shuffles=1).numbers
    again = audited(scores, shuffles=1).numbers
    assert one["shuffles"]["gap"].tolist() == again["shuffles"]["gap"].tolist()
    spread = one["variants"]["shuffled, mean"]["gap"]
    assert spread["high"] - spread["low"] > 0  # equal gaps would have an interval of width 0
    assert one["variants"]["full ECR"]["gap"]["high"] == pytest.approx(one["variants"]["full ECR"]["gap"]["low"])
    other = audited(scores, shuffles=1, seed=7).numbers
    assert one["shuffles"]["gap"].tolist() != other["shuffles"]["gap"].tolist()


def test_the_bootstrap_draws_prompts(tmp_path: Path) -> None:
    """The interval of a slow bootstrap over prompts, all responses of a prompt together."""
    made = responses(12)
    numbers = audited(write_texts(tmp_path, made), replicates=4000).numbers
    gaps = np.asarray([each["gap"]["full ECR"] for each in numbers["responses"]]).reshape(12, 5)
    dice = np.random.default_rng(5)
    means = [gaps[dice.integers(12, size=12)].mean() for _ in range(4000)]
    found = numbers["variants"]["full ECR"]["gap"]
    width = found["high"] - found["low"]
    assert found["low"] == pytest.approx(np.quantile(means, 0.025), abs=0.06 * width)
    assert found["high"] == pytest.approx(np.quantile(means, 0.975), abs=0.06 * width)


def test_a_judged_response_without_finite_scores_is_left_out_and_counted(tmp_path: Path) -> None:
    first, *rest = responses()
    scores = write_texts(tmp_path / "bad", [replace(first, gap=(math.nan, *first.gap[1:])), *rest])
    numbers = audited(scores).numbers
    assert numbers["selection"]["left_out_nonfinite"] == 1
    assert numbers["selection"]["eligible"] == len(labelled(scores)) - 1
    assert math.isfinite(numbers["variants"]["full ECR"]["gap"]["value"])
