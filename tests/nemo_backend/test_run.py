"""Launching: a machine without NeMo-RL, a run that continues, and the end of a run before its last step."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_uecr.config.load import load_nemo_config
from nemo_uecr.errors import RunFolderError
from nemo_uecr.nemo import launcher, upstream
from nemo_uecr.nemo.estimator import StepContext
from nemo_uecr.nemo.launcher import SAVING_S, limit_time, report_early_end
from nemo_uecr.nemo.upstream import UpstreamError
from nemo_uecr.stopping import JOB_END, RunStopped, StopRequest
from tests.config.test_nemo import CONFIGS, GRPO
from tests.nemo_backend.test_preflight import world

BASE = CONFIGS / "uecr_qwen3_1p7b.yaml"


def test_without_nemo_rl_a_run_stops_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_continued_run_counts_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedules of alpha and the seeds of the shuffles are functions of the completed steps, here seven."""
    contexts: list[StepContext] = []
    found: list[int] = []
    real = launcher.StepContext

    def watched(*args: Any, **given: Any) -> StepContext:
        contexts.append(real(*args, **given))
        return contexts[-1]

    def run_loop(*args: Any, make_policy: Any, before: Any) -> int:
        before(SimpleNamespace(checkpointing={}), 7)
        found.append(contexts[-1].completed_steps)
        return 7

    monkeypatch.setattr(launcher, "StepContext", watched)
    monkeypatch.setattr(upstream, "register_environment", lambda name, actor: None)
    monkeypatch.setattr(upstream, "prepare_run", lambda native: (None, None, None))
    monkeypatch.setattr(upstream, "run_loop", run_loop)
    monkeypatch.setattr(upstream, "loss_markers", lambda: (None, None))
    monkeypatch.setattr(upstream, "substitutions", lambda **given: contextlib.nullcontext())
    config = load_nemo_config(BASE, world(tmp_path))
    (tmp_path / "run").mkdir()
    records = {"origins": {}, "objective": "", "version": "0.7.0"}
    stop, completed = launcher._run(config, None, None, records)
    assert (found, completed, stop.asked) == ([7], 7, False)
