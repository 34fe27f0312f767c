"""Response lengths of a plan against their closed form, and the rollout that waits for the longest."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean

import pytest
from scipy.optimize import brentq

from nemo_uecr.plan import nemo
from nemo_uecr.plan.contents import GPUS, Lengths, Phase
from nemo_uecr.plan.nemo import Setting, response_lengths
from tests.plan.subjects import nemo as config_of

NORMAL = NormalDist()
CUT, MEAN = 600, 200


def mean_of_cut(mu: float, sigma: float, cut: float) -> float:
    """E min(X, c) = exp(mu + s^2 / 2) F((ln c - mu - s^2) / s) + c (1 - F((ln c - mu) / s)) of a lognormal X."""
    place = (math.log(cut) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * NORMAL.cdf(place - sigma) + cut * (1 - NORMAL.cdf(place))


def mu_of(mean: float, sigma: float, cut: float) -> float:
    return float(brentq(lambda mu: mean_of_cut(mu, sigma, cut) - mean, 0, 20))


@pytest.mark.parametrize("sigma", [0.6, 1.2])
def test_lengths_are_those_of_the_closed_form(sigma: float) -> None:
    drawn = response_lengths(Lengths(200, 5357, sigma), 16_384, 1008)
    mu = mu_of(5357, sigma, 16_384)
    assert fmean(drawn) == pytest.approx(5357)
    assert drawn[504] == pytest.approx(math.exp(mu), rel=0.01)
    at_the_cut = sum(length == pytest.approx(16_384) for length in drawn) / 1008
    assert at_the_cut == pytest.approx(1 - NORMAL.cdf((math.log(16_384) - mu) / sigma), abs=0.002)


def test_lengths_without_spread_or_room_are_all_the_same() -> None:
    assert response_lengths(Lengths(1, 50, 0.0), 100, 4) == pytest.approx([50] * 4)
    assert response_lengths(Lengths(1, 100, 0.9), 100, 4) == pytest.approx([100] * 4)


def test_a_rollout_waits_for_its_slowest_engine() -> None:
    """The same tokens take longer where their lengths differ, by what the average engine waits and more."""
    equal, spread, wide = map(rollout_of, (0.0, 0.3, 0.6))
    assert equal.waiting == pytest.approx(0, abs=1e-9)
    assert 0 < spread.waiting < wide.waiting
    assert equal.seconds < spread.seconds < wide.seconds


def rollout_of(sigma: float) -> Phase:
    """128 responses on 8 engines."""
    changes = ("rollout.prompts_per_step=16", "train.minibatch_responses=128", f"rollout.max_response_tokens={CUT}")
    return nemo.rollout(Setting(config_of(*changes), GPUS["h100"], Lengths(100, MEAN, sigma)))
