"""Launching: the teacher's life, a machine without NeMo-RL, and the end of a run before its last step."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.errors import RunFolderError
from nemo_uecr.nemo import teachers, upstream
from nemo_uecr.nemo.errors import UpstreamError, WorkerError
from nemo_uecr.nemo.request import ScoreRequest
from nemo_uecr.nemo.scorer import on_device
from nemo_uecr.stopping import JOB_END, RunStopped, StopRequest
from tests.config.test_nemo import CONFIGS, GIVEN, GRPO

BASE = CONFIGS / "uecr_qwen3_1p7b.yaml"


def test_a_silent_worker_is_not_asked_again() -> None:
    """The error that names it is the one that is seen, after one wait."""
    events: list[str] = []

    def offload() -> None:
        events.append("off")
        raise WorkerError("offload_after_refit: no answer")

    def fail(error: Exception) -> None:
        teacher: Any = SimpleNamespace(load=lambda: None, offload=offload)
        with on_device(teacher):
            raise error

    with pytest.raises(WorkerError, match="score_tokens: no answer"):
        fail(WorkerError("score_tokens: no answer"))
    assert events == []
    with pytest.raises(ValueError, match="first"):
        fail(ValueError("first"))
    assert events == ["off"]


def teacher_with(calls: list[str], monkeypatch: pytest.MonkeyPatch, *, dedicated: bool) -> teachers.RayTeacher:
    monkeypatch.setattr(upstream, "policy_class", lambda: lambda **given: SimpleNamespace(data_parallel_size=1))
    monkeypatch.setattr(teachers, "call_all", lambda policy, method, **given: calls.append(method))
    monkeypatch.setattr(teachers, "score_on_workers", lambda *args, **given: calls.append("score_tokens"))
    config = load_nemo_config(BASE, GIVEN["1p7b"])
    return teachers.RayTeacher(config, student={}, cluster=None, tokenizer=None, stays=dedicated)


def test_the_offload_is_measured_at_the_start_and_after_the_first_scoring(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    teacher = teacher_with(calls, monkeypatch, dedicated=False)
    assert calls == ["offload_after_refit", "assert_offloaded"]
    for _ in range(3):
        with on_device(teacher):
            teacher.score_tokens({}, ScoreRequest((1.0,), False, 8, 8))
    step = ["prepare_for_lp_inference", "score_tokens", "offload_after_refit"]
    assert calls[2:] == [*step, "assert_offloaded", *step, *step]


def test_every_call_of_a_worker_waits_as_long_as_the_configuration_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: dict[str, float] = {}

    class Policy:
        def __init__(self, **given: object) -> None:
            """As NeMo-RL's, which takes many."""
            self.cfg = {"generation": {"vllm_cfg": {"gpu_memory_utilization": 0.6}}}

        def offload_before_refit(self) -> None:
            """As NeMo-RL's, right before vLLM wakes."""
            waits["offload_before_refit"] = 0.0

    monkeypatch.setattr(upstream, "policy_class", lambda: Policy)
    monkeypatch.setattr(teachers, "call_all", lambda policy, method, **given: waits.update({method: given["seconds"]}))
    monkeypatch.setattr(teachers, "score_on_workers", lambda *args, **given: waits.update(score=given["seconds"]))
    config = load_nemo_config(BASE, [*GIVEN["1p7b"], "scoring.timeout_s=7"])
    teacher = teachers.RayTeacher(config, student={}, cluster=None, tokenizer=None, stays=False)
    with on_device(teacher):
        teacher.score_tokens({}, ScoreRequest((1.0,), False, 8, 8))
    methods = ("offload_after_refit", "assert_offloaded", "prepare_for_lp_inference", "score")
    assert waits == dict.fromkeys(methods, 7.0)
    teachers.scoring_policy_class(timeout_s=8.0)().score_tokens({}, ScoreRequest((1.0,), False, 8, 8))
    assert waits["score"] == 8.0
    teachers.scoring_policy_class(timeout_s=9.0)().offload_before_refit()
    assert list(waits.items())[-2:] == [("offload_before_refit", 0.0), ("assert_room", 9.0)]


def test_a_dedicated_teacher_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with on_device(teacher_with(calls, monkeypatch, dedicated=True)):
        pass
    assert calls == []


def test_without_nemo_rl_a_run_stops_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from nemo_uecr.nemo import launcher

    monkeypatch.setitem(sys.modules, "nemo_rl", None)
    monkeypatch.delitem(sys.modules, "nemo_rl.package_info", raising=False)
    problems = tmp_path / "p.jsonl"
    problems.write_text('{"question": "1+1", "final_answer": "2", "difficulty": 6}\n' * 200)
    given = [f"data.train={problems}", f"run.folder={tmp_path}/run"]
    with pytest.raises(UpstreamError, match="NeMo-RL cannot be imported") as caught:
        launcher.train(
            load_nemo_config(BASE, [*GRPO, *given]),
            resume=False,
            origins={},
            objective="",
        )
    assert "\n" not in str(caught.value)


def ended(*overrides: str, completed: int, reason: str = "SIGUSR1") -> None:
    """Report the end of a run that was asked to stop and reached this step."""
    from nemo_uecr.nemo.early_end import report_early_end

    stop = StopRequest()
    stop.ask(reason)
    config = load_nemo_config(BASE, [*GRPO, "train.steps=40", *overrides])
    report_early_end(stop, config, completed=completed)


def test_an_early_end_says_where_it_saved() -> None:
    with pytest.raises(RunStopped, match=r"stopped by SIGUSR1 after step 7 of 40; .*/checkpoints/step_7 is complete"):
        ended(completed=7)
    ended(completed=40)  # the last step was under way: the run is complete
    with pytest.raises(RunFolderError, match=r"checkpoint.every=0: nothing was saved"):
        ended("checkpoint.every=0", completed=0)


def test_the_job_s_end_becomes_nemo_rl_s_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_uecr.nemo.early_end import SAVING_S, limit_time

    native: Any = SimpleNamespace(checkpointing={"checkpoint_must_save_by": None})
    monkeypatch.delenv(JOB_END, raising=False)
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] is None
    # 1 day, 2 hours, 3 minutes and 4 seconds, and what a save may take
    monkeypatch.setenv(JOB_END, str(time.time() + 86400 + 7200 + 180 + 4 + SAVING_S + 0.9))
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] == "01:02:03:04"
    monkeypatch.setenv(JOB_END, str(time.time() + 1))  # too late for anything: after the first step
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] == "00:00:00:00"
