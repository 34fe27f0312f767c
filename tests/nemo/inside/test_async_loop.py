"""NeMo-RL's real asynchronous loop: responses of older policies, its swallowed errors, and what ends it."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from nemo_uecr.nemo import upstream
from nemo_uecr.stopping import StopRequest
from tests.nemo.inside.async_world import AsyncTinyPolicy, Numbered, async_run_of, train_asynchronously
from tests.nemo.inside.loop import GROUP, PROMPTS
from tests.nemo.inside.tiny_world import PROMPT, TinyTeacher

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.parametrize(
    ("method", "age"),
    [
        ("uecr", 2),
        pytest.param("grpo_plus_opd", 1, marks=pytest.mark.slow),
        pytest.param("grpo", 1, marks=pytest.mark.slow),
        pytest.param("uecr_trust", 1, marks=pytest.mark.slow),
    ],
)
def test_responses_of_older_policies_train(method: str, age: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the first weights are under way: main's loop begins to collect after it."""
    monkeypatch.setattr(upstream, "WATCH_S", 0.5)
    run = train_asynchronously(async_run_of(method, age), steps=3, first_refit_s=3.0)
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


def test_an_error_that_the_loop_swallows_ends_the_run_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the loop then ends its collector is no cause."""
    monkeypatch.setattr(upstream, "WATCH_S", 0.05)

    class Failing(TinyTeacher):
        def score_tokens(self, data: Any, request: Any) -> Any:
            raise ArithmeticError("the teacher's GPU is gone")

    with pytest.raises((ArithmeticError, upstream.WorkerError), match="the teacher's GPU is gone"):
        train_asynchronously(async_run_of("uecr", 1), steps=2, teacher=Failing)


@pytest.mark.slow
def test_an_error_of_the_last_checkpoint_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.7's loop prints it and returns; the step's metrics are logged before."""

    def save_checkpoint(self: Any, *args: Any, **given: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(AsyncTinyPolicy, "save_checkpoint", save_checkpoint, raising=False)
    saving = async_run_of("grpo", 1, "checkpointing.enabled=true", "checkpointing.save_period=2")
    checkpointer = MagicMock(get_latest_checkpoint_path=lambda: None)
    checkpointer.init_tmp_checkpoint.return_value = str(tmp_path)
    with pytest.raises((upstream.WorkerError, OSError), match="no space left"):
        train_asynchronously(saving, steps=2, checkpointer=checkpointer)
    checkpointer.finalize_checkpoint.assert_not_called()


def test_a_collector_at_its_end_is_no_fault_while_the_loop_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last step, and a checkpoint that keeps the buffer, may take minutes."""
    import ray

    @ray.remote
    class Collector:
        running, dataloader, _inflight_threads = False, "data", ()

    @ray.remote
    class Buffer:
        def size(self) -> int:
            return 0

    monkeypatch.setattr(upstream, "WATCH_S", 0.05)
    buffer, waits = Buffer.remote(), threading.Event()
    actors = {"AsyncTrajectoryCollector": Collector.remote(), "ReplayBuffer": buffer}
    recorded: Any = {name: SimpleNamespace(actor=actor) for name, actor in actors.items()}
    context = SimpleNamespace(settings=SimpleNamespace(prompts_per_step=PROMPTS), step=3)
    ended, over = list[BaseException](), threading.Event()
    watch = threading.Thread(
        target=upstream._watch_collection, args=(recorded, context, waits.is_set, ended, over), daemon=True
    )
    watch.start()
    assert ray.get(buffer.size.remote()) == 0
    watch.join(3.0)
    assert (watch.is_alive(), ended) == (True, [])
    waits.set()
    watch.join()
    assert [str(each).partition(":")[0] for each in ended] == [
        f"the collector of responses has stopped with 0 of the {PROMPTS} groups of step 3"
    ]
    time.sleep(1.0)  # an actor ends in its own time
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(buffer.size.remote())


def test_data_that_ends_too_early_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Few(Numbered):
        def __len__(self) -> int:
            return 2 * PROMPTS

    monkeypatch.setattr(upstream, "WATCH_S", 0.5)
    with pytest.raises((RuntimeError, upstream.WorkerError), match=r"the data is exhausted|dataloader exhausted"):
        train_asynchronously(async_run_of("grpo", 1), steps=6, problems=Few())


@pytest.mark.slow
def test_a_collector_that_dies_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo-RL's own loop would wait for its responses for ever."""
    import ray

    class Ending(Numbered):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index >= 2 * PROMPTS:  # read by the collector's process
                os._exit(1)
            return super().__getitem__(index)

    monkeypatch.setattr(upstream, "WATCH_S", 0.5)
    with pytest.raises((upstream.WorkerError, ray.exceptions.RayActorError), match="died"):
        train_asynchronously(async_run_of("grpo", 1), steps=6, problems=Ending())


@pytest.mark.slow
def test_a_stop_ends_the_loop_after_its_step() -> None:
    stop = StopRequest()
    stop.ask("SIGUSR1")
    run = train_asynchronously(async_run_of("grpo", 1, "checkpointing.enabled=false"), steps=5, stop=stop)
    assert run.context.completed_steps < 5
