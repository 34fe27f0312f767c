"""The efficiency audit against hand values."""

from __future__ import annotations

import pytest

from nemo_uecr.audit.efficiency import Run, efficiency_audit


def step(number: int, **seconds: float) -> dict[str, float]:
    """A step of 10 responses of 20 tokens, with times of its phases."""
    times = {f"time/{name}_s": value for name, value in seconds.items()}
    counted = {"step": number, "response/length_mean": 20.0, "count/trajectories": 10.0, "memory/peak_rss_mb": 100.0}
    return counted | times


#: 200 tokens a step. Training time: 10 - 4 = 6 s and 8 s; the teacher takes 1 + 2 of it.
UECR = [
    step(1, rollout=3, verify=0.5, score_teacher=1, update=1, evaluate=4, step=10, save=0.5),
    step(2, rollout=3, verify=0.5, score_teacher=2, update=2, step=8) | {"memory/peak_rss_mb": 120.0},
]
#: 400 tokens in 4 + 4 s; no teacher.
GRPO = [step(1, rollout=2, update=1, step=4), step(2, rollout=2, update=1, step=4)]


def test_hand_values() -> None:
    numbers = efficiency_audit([Run("a", "uecr", UECR, ()), Run("b", "grpo", GRPO, ())], "b").numbers
    cost = numbers["runs"]["a"]
    assert (cost["training_s"], cost["wall_clock_s"], cost["evaluation_s"]) == (14.0, 18.5, 4.0)
    assert (cost["rollout_s"], cost["scorer_s"], cost["tokens"]) == (6.0, 3.0, 400.0)
    assert cost["other_s"] == pytest.approx(14 - (6 + 1 + 3 + 3))
    assert cost["tokens_per_s"] == pytest.approx(400 / 14)
    assert cost["rollout_tokens_per_s"] == pytest.approx(400 / 6)
    assert cost["tokens_per_s_by_step"]["value"].tolist() == pytest.approx([200 / 6, 200 / 8])
    assert cost["scorer_overhead"] == pytest.approx(3 / 11)
    # 14 s against 8 s for as many tokens and steps
    assert cost["overhead_against_baseline"] == pytest.approx({"per_token": 14 / 8 - 1, "per_step": 14 / 8 - 1})
    assert cost["step_s_quantiles"]["0.5"] == 7.0
    assert cost["peak_memory_mb"] == {"process": 120.0, "gpu": None}


def test_what_grpo_does_not_have_is_absent() -> None:
    cost = efficiency_audit([Run("b", "grpo", GRPO, ())], None).numbers["runs"]["b"]
    assert cost["scorer_s"] is None
    assert cost["scorer_overhead"] is None
    assert "score teacher" not in cost["phase_s"]
    assert cost["overhead_against_baseline"] is None


def test_longer_responses_do_not_count_as_overhead() -> None:
    """Twice the tokens in twice the time: nothing per token, everything per step."""
    longer = [each | {"response/length_mean": 40.0, "time/step_s": 8.0} for each in GRPO]
    cost = efficiency_audit([Run("a", "uecr", longer, ()), Run("b", "grpo", GRPO, ())], "b").numbers["runs"]["a"]
    assert cost["overhead_against_baseline"] == pytest.approx({"per_token": 0.0, "per_step": 1.0})


def test_memory_of_a_gpu() -> None:
    run = [each | {"memory/peak_gpu_mb": 10.0 * each["step"]} for each in GRPO]
    assert efficiency_audit([Run("b", "grpo", run, ())], None).numbers["runs"]["b"]["peak_memory_mb"]["gpu"] == 20.0
