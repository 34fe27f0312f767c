"""NeMo-RL's real asynchronous loop: responses of older policies, its swallowed errors, and what ends it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from nemo_uecr.nemo import upstream
from nemo_uecr.stopping import StopRequest
from tests.nemo.inside.async_world import Numbered, async_run_of, train_asynchronously
from tests.nemo.inside.loop import GROUP, PROMPTS
from tests.nemo.inside.tiny_world import PROMPT, TinyTeacher

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize(
    ("method", "age"),
    [
        ("uecr", 2),
        ("grpo_plus_opd", 1),
        pytest.param("grpo", 1, marks=pytest.mark.slow),
        pytest.param("uecr_trust", 1, marks=pytest.mark.slow),
    ],
)
def test_responses_of_older_policies_train(method: str, age: int) -> None:
    run = train_asynchronously(async_run_of(method, age), steps=3)
    assert len(run.metrics) == 3
    for metrics in run.metrics:
        assert math.isfinite(metrics["loss"])
        assert metrics["policy/first_ratio_error"] == 0.0  # against the policy before the update
        assert metrics["count/unique_prompts"] == PROMPTS
        assert metrics["count/trajectories"] == PROMPTS * GROUP
    assert run.metrics[0]["policy/behind_kl"] == pytest.approx(0.0, abs=1e-9)
    assert run.metrics[-1]["policy/behind_kl"] > 0
    assert run.metrics[-1]["gen_kl_error"] > 0  # NeMo-RL's own is that of the two policies, too
    for batch in run.trained:
        prompts = batch["input_ids"][:, :PROMPT].view(PROMPTS, GROUP, PROMPT)
        assert torch.equal(prompts, prompts[:, :1].expand_as(prompts))
    stale = run.trained[-1]
    assert not torch.equal(stale["prev_logprobs"], stale["generation_logprobs"])


def test_an_error_that_the_loop_swallows_ends_the_run_with_its_cause() -> None:
    class Failing(TinyTeacher):
        def score_tokens(self, data: Any, request: Any) -> Any:
            raise ArithmeticError("the teacher's GPU is gone")

    with pytest.raises((ArithmeticError, upstream.WorkerError), match="the teacher's GPU is gone"):
        train_asynchronously(async_run_of("uecr", 1), steps=2, teacher=Failing)


def test_data_that_ends_too_early_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Few(Numbered):
        def __len__(self) -> int:
            return 2 * PROMPTS

    monkeypatch.setattr(upstream, "WATCH_S", 0.5)
    with pytest.raises((RuntimeError, upstream.WorkerError), match=r"has stopped|exhausted|Trajectory collector"):
        train_asynchronously(async_run_of("grpo", 1), steps=6, problems=Few())


def test_a_stop_ends_the_loop_after_its_step() -> None:
    stop = StopRequest()
    stop.ask("SIGUSR1")
    run = train_asynchronously(async_run_of("grpo", 1, "checkpointing.enabled=false"), steps=5, stop=stop)
    assert run.context.completed_steps < 5
