"""Response lengths of a plan and the rollout that waits for the longest, against a simulation token by token."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean

import pytest
from scipy.optimize import brentq

from nemo_uecr.plan import nemo
from nemo_uecr.plan.contents import CACHE_SHARE, FORWARD_SHARE, GPUS, WEIGHTS_SHARE, Lengths
from nemo_uecr.plan.nemo import DECODE_STEP, Setting, response_lengths
from nemo_uecr.plan.shapes import forward_flops
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


def simulated(setting: Setting, at_once: int, batches: int) -> float:
    """Seconds of the slowest engine, each token of each engine in turn, over random batches."""
    draws, mu = random.Random(1), mu_of(MEAN, setting.lengths.sigma, CUT)
    weights = setting.vllm_bytes / (setting.device.bandwidth * WEIGHTS_SHARE)
    token = setting.token_bytes / (setting.device.bandwidth * CACHE_SHARE)
    prompt = setting.lengths.prompt
    prefill = prompt * forward_flops(setting.student.shape, prompt) / (setting.device.flops * FORWARD_SHARE)
    each = setting.responses // setting.engines
    ends = []
    for _ in range(batches):
        engines = []
        for _ in range(setting.engines):
            queue = [min(math.exp(draws.gauss(mu, setting.lengths.sigma)), CUT) for _ in range(each)]
            active: list[tuple[float, int]] = []
            passed = prefill * each / setting.config.rollout.responses_per_prompt
            while queue or active:
                active += [(queue.pop(0), 0) for _ in range(min(at_once - len(active), len(queue)))]
                passed += weights + token * sum(prompt + place for _, place in active) + DECODE_STEP
                active = [(length, place + 1) for length, place in active if length > place + 1]
            engines.append(passed)
        ends.append(max(engines))
    return fmean(ends)


@pytest.mark.parametrize(("sigma", "at_once"), [(0.9, 16), (1.2, 5)])
def test_a_rollout_ends_with_its_slowest_engine(sigma: float, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 responses on 8 engines, all at work at once or five at a time."""
    changes = ("rollout.prompts_per_step=16", "train.minibatch_responses=128", f"rollout.max_response_tokens={CUT}")
    setting = Setting(config_of(*changes), GPUS["h100"], Lengths(100, MEAN, sigma))
    monkeypatch.setattr(nemo, "concurrent_responses", lambda *given: at_once)
    phase = nemo.rollout(setting)
    planned = phase.seconds - setting.vllm_bytes / setting.device.host_link
    assert planned == pytest.approx(simulated(setting, at_once, 40), rel=0.02)
    assert 0 < phase.waiting < planned
