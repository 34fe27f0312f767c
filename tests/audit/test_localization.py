"""The localization audit against planted positions and against the paper's formulas."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nemo_uecr.audit.judging import Labels
from nemo_uecr.audit.localization import candidates, localization_audit, rank_among, write_candidates
from nemo_uecr.audit.store import Scored
from nemo_uecr.core.methods.uecr import Uecr
from tests.audit.made import FAILED, TOKENIZER, Made, failed_groups, write_scores

UECR = Uecr(alpha=1.0, rho=0.5, tau_delta=2.0, tau_entropy=0.7)
LABELS = Labels(item="item", labels=("valid", "invalid", "valid", "not_reasoning"), first_error=2)
STEP = [0] * 6 + [1] * 6 + [2] * 6 + [3] * 3 + [-1]


def audited(scores: Scored, **changes: int) -> dict[str, Any]:
    labels = dict.fromkeys(labelled(scores), LABELS)
    arguments = {"checkpoint": 0, "shuffles": 20, "replicates": 200, "seed": 42} | changes
    return localization_audit(scores, labels, UECR, TOKENIZER, **arguments).numbers


def labelled(scores: Scored) -> list[str]:
    tokens = scores.tokens("student", 0)
    return [scores.ids[row] for row in tokens.rows[candidates(scores, tokens)[0]]]


def test_who_is_a_candidate(tmp_path: Path) -> None:
    """Mixed groups of eight only; the failed ones that reason."""
    made = failed_groups(2)
    made += [replace(each, problem="flat", reward=0.0) for each in made[:8]]
    made += [replace(each, problem="small") for each in made[4:8]]
    scores = write_scores(tmp_path / "s", made)
    _, counts = candidates(scores, scores.tokens("student", 0))
    assert counts == {"groups": 4, "mixed_groups_of_eight": 2, "incorrect_in_them": 12, "reasoning_free": 2}
    assert labelled(scores) == [f"r{8 * problem + number}" for problem in (0, 1) for number in range(5)]
    assert write_candidates(scores, tmp_path / "judging", checkpoint=0, limit=4, seed=1) == (4, 16)


def slow_weights(made: Made, *, entropy: bool) -> list[float]:
    """eq:local-signal and eq:projection-weights for a negative task advantage, in plain Python."""
    d = [math.tanh(-gap / (2 * 2.0)) for gap in made.gaps]
    c = [math.exp(-value / 0.7) if entropy else 1.0 for value in made.entropies or ()]
    mu = sum(x * y for x, y in zip(c, d, strict=True)) / sum(c)
    return [1 + 0.5 * 0.5 * x * (y - mu) for x, y in zip(c, d, strict=True)]


def slow_gap(weights: list[float], above: set[int], below: set[int]) -> float:
    def mean(steps: set[int]) -> float:
        chosen = [w for w, step in zip(weights, STEP, strict=True) if step in steps]
        return sum(chosen) / len(chosen)

    return mean(above) - mean(below)


def test_against_the_formulas_written_out(tmp_path: Path) -> None:
    made = failed_groups()
    numbers = audited(write_scores(tmp_path, made))
    judged = [each for number, each in enumerate(made) if number % 8 < 5]
    for name, use in (("full ECR", True), ("no entropy", False)):
        weights = [slow_weights(each, entropy=use) for each in judged]
        gaps = [slow_gap(w, {1}, {0, 2}) for w in weights]
        first = [slow_gap(w, {1}, {0}) for w in weights]  # the valid step after the error does not count
        found = numbers["variants"][name]
        assert found["gap"]["value"] == pytest.approx(sum(gaps) / 15, abs=1e-7)  # scores are stored in float32
        assert found["first_error"]["value"] == pytest.approx(sum(first) / 15, abs=1e-7)
        assert found["positive"]["value"] == sum(gap > 0 for gap in gaps) / 15
        assert [each["gap"][name] for each in numbers["responses"]] == pytest.approx(gaps, abs=1e-7)
        assert found["budget_error"] <= 1e-14  # B_i = 1 in float64
    assert numbers["selection"]["eligible"] == 15
    own = numbers["responses"][0]
    assert (own["response"], own["invalid_tokens"], own["valid_tokens"]) == ("r0", 6, 12)


def test_problems_of_other_checkpoints_do_not_widen_the_interval(tmp_path: Path) -> None:
    """As where each step's batch draws other problems."""
    made = failed_groups()
    others = [replace(each, problem=f"other {each.problem}", checkpoint=9) for each in made]
    alone, beside = (audited(write_scores(tmp_path / str(len(all_)), all_)) for all_ in (made, others + made))
    assert beside["variants"]["full ECR"] == alone["variants"]["full ECR"]


@pytest.fixture
def planted(tmp_path: Path) -> Scored:
    """A certain teacher dislikes the invalid step and likes the valid ones; where it is uncertain it dislikes both."""
    sure = [step == 1 or at % 2 == 0 for at, step in enumerate(STEP)]
    gaps = [2.0 if sure[at] and step != 1 else -2.0 for at, step in enumerate(STEP)]
    entropies = [0.0 if each else 2.0 for each in sure]
    eight = [Made("", number >= 4, gaps, entropies=entropies, response=FAILED) for number in range(8)]
    return write_scores(tmp_path, [replace(each, problem=f"p{problem}") for problem in range(12) for each in eight])


def test_planted_positions_are_found(planted: Scored) -> None:
    """The invalid step gets more blame than under any permutation."""
    numbers = audited(planted, shuffles=100)
    full, shuffles = numbers["variants"]["full ECR"], numbers["shuffles"]
    assert full["positive"]["value"] == 1.0
    assert (shuffles["at_least_full"], shuffles["p"]) == (0, 1 / 101)
    equal = rank_among(np.asarray([0.1, 0.2, 0.3]), 0.2)  # an equal shuffle counts: p = (2 + 1) / (3 + 1)
    assert (equal["at_least_full"], equal["p"]) == (2, 0.75)
    assert full["gap"]["value"] > max(shuffles["gap"])
    assert len(shuffles["gap"]) == 100
    assert shuffles["mean"] == pytest.approx(numbers["variants"]["shuffled, mean"]["gap"]["value"], abs=1e-15)


def test_shuffles_differ_between_responses_and_seeds(planted: Scored) -> None:
    """Twelve equal responses: with one permutation for all of them, every response would have the same gap."""
    one, again, other = (audited(planted, shuffles=1, seed=seed) for seed in (42, 42, 7))
    assert one["shuffles"]["gap"].tolist() == again["shuffles"]["gap"].tolist() != other["shuffles"]["gap"].tolist()
    spread, full = (one["variants"][name]["gap"] for name in ("shuffled, mean", "full ECR"))
    assert spread["high"] - spread["low"] > 0  # equal gaps would have an interval of width 0
    assert full["high"] == pytest.approx(full["low"])


def test_a_judged_response_without_finite_scores_is_left_out_and_counted(tmp_path: Path) -> None:
    first, *rest = failed_groups()
    numbers = audited(write_scores(tmp_path, [replace(first, gaps=[math.nan, *first.gaps[1:]]), *rest]))
    assert (numbers["selection"]["left_out_nonfinite"], numbers["selection"]["eligible"]) == (1, 14)
    assert math.isfinite(numbers["variants"]["full ECR"]["gap"]["value"])
