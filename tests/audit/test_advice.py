"""Advice from made facts: what each rule gives, and that what is unknown leads to caution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nemo_uecr.audit.advice import METHOD, REFUSED, TOKENS, UNDECIDED, Facts, advice_lines, measured_lines
from nemo_uecr.audit.facts import RECORDED, SCORED, kappa_interval
from nemo_uecr.config.load import SHIPPED, load_config
from nemo_uecr.core.methods import METHODS
from nemo_uecr.core.methods.uecr_trust import trust
from nemo_uecr.core.record import ScoredBatch
from nemo_uecr.stats import ClusterBootstrap, Share

CONFIG = load_config(SHIPPED / "local" / "demo.yaml", ()).config


def share(value: float, margin: float = 0.04) -> Share:
    return {"value": value, "low": value - margin, "high": value + margin}


FACTS = Facts(
    shares={
        "student": share(0.3), "teacher": share(0.6), "lead": share(0.3), "order": share(0.8), "kappa": share(0.5),
        "equal": share(0.4),
    },
    problems=32,
    mixed=20,
    numbers={
        **dict.fromkeys((*SCORED, *RECORDED), 0.0), "safe_alpha": 4.0, "noise": None, "spread": 0.1,
    },
    equal={4: (0.3, 0.3), 8: (0.2, 0.2), 16: (0.1, 0.1)},
    columns={},
    method=CONFIG.method,
    group_size=8,
    limit=48,
)  # fmt: skip


def placed(**shares: Share | None) -> Facts:
    return replace(FACTS, shares={**FACTS.shares, **shares})


def advised(facts: Facts) -> dict[str, str]:
    return {line.name: line.value for line in advice_lines(facts)}


def with_numbers(**numbers: float | None) -> dict[str, str]:
    return advised(replace(FACTS, numbers={**FACTS.numbers, **numbers}))


@pytest.mark.parametrize(
    ("shares", "outcome"),
    [
        ({}, TOKENS),
        ({"lead": None}, TOKENS),
        ({"kappa": share(0.0)}, REFUSED),
        ({"kappa": share(0.08)}, UNDECIDED),
        ({"lead": share(-0.2)}, REFUSED),
        ({"lead": share(-0.2), "order": None, "kappa": None}, REFUSED),
        ({"order": share(0.3)}, REFUSED),
        ({"order": share(0.51), "kappa": share(0.0)}, REFUSED),
        ({"order": share(0.51), "kappa": share(0.06)}, UNDECIDED),
        ({"order": None, "kappa": None}, UNDECIDED),
    ],
)
def test_how_far_to_follow(shares: dict[str, Any], outcome: str) -> None:
    found = advised(placed(**shares))
    assert found["teacher"] == outcome
    assert found["method"] == METHOD[outcome][0] in METHODS
    assert {"alpha", "std_floor"} & found.keys() == (set() if outcome == REFUSED else {"alpha", "std_floor"})


def test_problems_that_are_needed() -> None:
    def needed(facts: Facts) -> list[str]:
        return [word for word in advice_lines(facts)[0].sure.split() if word.isdigit()]

    wide = [share(0.15, 0.2), share(-0.05, 0.2), share(0.05, 0.2), share(0.0)]
    assert [needed(placed(kappa=kappa)) for kappa in wide] == [["128"], ["128"], [], []]
    few = placed(order=None, kappa=None)
    assert needed(replace(few, mixed=4)) == ["48"]  # six mixed ones of as many
    cut = replace(few, mixed=4, numbers={**few.numbers, "response/truncated_share": 0.6})
    assert "rollout.max_response_tokens" in advice_lines(cut)[0].sure
    assert needed(replace(few, mixed=0)) == needed(replace(few, numbers={**few.numbers, "spread": None})) == []


def test_settings_follow_the_numbers() -> None:
    assert advised(FACTS) == {
        "teacher": TOKENS, "method": "uecr_trust", "alpha": "1", "std_floor": "0", "group size": "8",
    }  # fmt: skip
    assert with_numbers(safe_alpha=None)["alpha"] == "1"
    assert with_numbers(safe_alpha=0.42)["alpha"] == "below 0.42"
    noisy = replace(FACTS, numbers={**FACTS.numbers, "noise": 0.025})
    half = replace(CONFIG.method, alpha=0.5)
    for method, share in ((CONFIG.method, "25%"), (half, "50%")):  # it is of alpha R^T, whose spread is alpha 0.1
        weighted = replace(noisy, method=method)
        assert advised(weighted)["std_floor"] == "0.075"
        (spread,) = [line.meaning for line in measured_lines(weighted) if line.name.startswith("spread")]
        assert spread == f"nats; the noise of scoring is {share} of it"
    many = replace(FACTS, equal={8: (0.0, 0.7), 16: (0.0, 0.4), 32: (0.0, 0.2)})
    assert advised(many)["group size"] == "16"
    assert advised(replace(FACTS, equal={8: (0.0, 0.9), 16: (0.0, 0.8)}))["group size"] == "8"


def test_kappa_has_an_interval_over_problems() -> None:
    """Eight problems with two groups of four; a gap on wrong responses alone, a constant one, and one by chance."""
    right_B, problem_B, old_BT = torch.arange(64) % 2 == 0, np.arange(64) // 8, torch.full((64, 5), -1.0)
    sampler = ClusterBootstrap.draw(problem_B, replicates=200, seed=0)

    def found(gap_B: torch.Tensor) -> Share:
        batch = ScoredBatch(
            task_reward_B=right_B.double(), group_B=torch.arange(64) // 4, mask_BT=old_BT < 0, old_logp_BT=old_BT,
            teacher_logp_BT=old_BT + gap_B[:, None],
        )  # fmt: skip
        share = kappa_interval(batch, problem_B, sampler, horizon=16.0, margin=0.2)
        assert share["value"] == pytest.approx(trust(batch, horizon=16.0, margin=0.2, memory=0.8)["kappa"])
        return share

    vouched = found(-2.0 * (~right_B).float())
    assert vouched["high"] - vouched["low"] < 1e-9  # all problems are alike
    assert vouched["value"] == pytest.approx(16 / 17)
    assert found(torch.full((64,), -0.1)) == {"value": 0.0, "low": 0.0, "high": 0.0}
    chance = found(-2.0 * torch.rand(64, generator=torch.Generator().manual_seed(3)).round())
    assert chance["low"] < 0.05 < chance["high"]
