"""Token credit: strata, location of large gaps, calibration, and budgets of exactly one."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from nemo_uecr.audit.store import Scored
from nemo_uecr.audit.token_credit import entropy_boundaries, token_credit_audit
from nemo_uecr.core.methods.uecr import Uecr
from nemo_uecr.errors import DataError
from tests.audit.made import Made, random_responses, write_scores
from tests.core.reference import confidence

UECR = Uecr(alpha=1.0, rho=0.5, tau_delta=0.8, tau_entropy=1.5)


def numbers_of(scores: Scored, checkpoint: int | None = None) -> dict[str, Any]:
    return token_credit_audit(scores, UECR, checkpoint=checkpoint, replicates=40, seed=42).numbers


def test_strata_by_hand() -> None:
    entropy_N = np.asarray([0.0] * 6 + [1.0, 2.0, 3.0, 4.0])
    boundaries = entropy_boundaries(entropy_N, 5)
    # the 2nd, 4th, 6th and 8th smallest values are 0, 0, 0 and 2: three collapse
    assert boundaries.tolist() == [0.0, 2.0]
    assert entropy_boundaries(np.asarray([1.0, 1.0]), 5).tolist() == []


def test_means_by_hand(tmp_path: Path) -> None:
    """Two strata; a long response outweighs a short one in the token mean and not in the balanced one."""
    quarter, whole = math.log(0.25), 0.0
    made = [
        Made("a", 1.0, [0.1] * 4, entropies=[0.0, 0.0, 2.0, 2.0], logp=quarter),
        Made("a", 0.0, [0.2], entropies=[2.0], logp=whole),
    ]
    strata = numbers_of(write_scores(tmp_path, made))["strata"]
    assert strata["tokens"].tolist() == [2, 3]
    # high stratum: tokens 0.25, 0.25, 1 -> 0.5; responses 0.25 and 1 -> 0.625
    np.testing.assert_allclose(strata["probability"]["token_weighted"]["value"], [0.25, 0.5])
    np.testing.assert_allclose(strata["probability"]["response_balanced"]["value"], [0.25, 0.625])
    np.testing.assert_allclose(strata["top1"]["token_weighted"]["value"], [0.0, 1 / 3])
    np.testing.assert_allclose(strata["top1"]["response_balanced"]["value"], [0.0, 0.5])


def test_against_a_slow_version(tmp_path: Path) -> None:
    scores = write_scores(tmp_path, random_responses({0: 4}, problems=9, tokens=30, seed=2))
    table = scores.tokens("student", 0)
    entropy = table.teacher_entropy.double().tolist()
    gap = [float(abs(a - b)) for a, b in zip(table.teacher_logp.double(), table.anchor_logp.double(), strict=True)]
    spans = [range(len(gap))[table.span(response)] for response in range(len(table.rows))]
    limit = sorted(entropy)[math.ceil(0.75 * len(entropy)) - 1]
    for row in numbers_of(scores)["large_gaps"]:
        top = sorted(range(len(gap)), key=lambda n: -gap[n])[: round(row["share"] * len(gap))]
        inside = {n: float(entropy[n] > limit) for n in top}
        before = {n: math.tanh(gap[n] / (2 * 0.8)) for n in top}
        after = {n: value * confidence(entropy[n], 1.5) for n, value in before.items()}

        def balanced(value: dict[int, float]) -> float:
            """The mean over responses of their own means."""
            own = [[value[n] for n in span if n in value] for span in spans]
            return fmean(fmean(each) for each in own if each)

        assert row["tokens"] == len(top)
        place, reduction = row["in_highest_quartile"], row["reduction"]
        assert place["token_weighted"]["value"] == pytest.approx(fmean(inside.values()))
        assert place["response_balanced"]["value"] == pytest.approx(balanced(inside))
        less = 1 - sum(after.values()) / sum(before.values())
        assert reduction["token_weighted"]["value"] == pytest.approx(less)
        assert reduction["response_balanced"]["value"] == pytest.approx(1 - balanced(after) / balanced(before))
        assert sum(row["by_stratum"]["token_weighted"]["value"]) == pytest.approx(1.0)


def test_the_projection_holds_every_budget_at_one(tmp_path: Path) -> None:
    made = sorted(random_responses({0: 8}, problems=12, tokens=100, seed=6), key=lambda each: each.gaps[0])
    scores = write_scores(tmp_path, made, part=20)  # groups in several parts
    weights, responses = numbers_of(scores)["weights"], scores
    mixed = [0 < responses.reward_B[responses.group_B == group].mean() < 1 for group in responses.group_B]
    assert weights["projected"]["responses"] == sum(mixed) > 8
    assert weights["projected"]["largest_error"] <= 1e-14
    free = weights["unprojected"]
    assert free["smallest"] < free["response_balanced"]["value"] < free["largest"]
    assert free["response_balanced"]["low"] < free["response_balanced"]["high"]
    assert free["largest_error"] > 1e-3  # the projection has something to do
    assert sum(free["histogram"]["counts"]) == sum(mixed)


def test_strata_are_those_of_the_first_checkpoint(tmp_path: Path) -> None:
    made = [Made("a", reward, [0.1] * 4, entropies=[0.0, 1.0, 2.0, 3.0]) for reward in (1.0, 0.0)]
    made += [Made("a", reward, [0.1] * 4, entropies=[9.0] * 4, checkpoint=30) for reward in (1.0, 0.0)]
    scores = write_scores(tmp_path, made)
    first, later = numbers_of(scores), numbers_of(scores, checkpoint=30)
    assert later["strata_from_checkpoint"] == 0
    assert later["strata"]["boundaries"].tolist() == first["strata"]["boundaries"].tolist()
    assert later["strata"]["tokens"].tolist()[-1] == 8  # all beyond the highest boundary
    with pytest.raises(DataError, match="checkpoint 7"):
        numbers_of(scores, checkpoint=7)
