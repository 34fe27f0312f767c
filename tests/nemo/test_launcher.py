"""Launching: a folder is begun once and continued as it was, and a run ends before its last step when asked to."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_uecr.config.load import load_as, load_nemo_config
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.errors import RunFolderError
from nemo_uecr.nemo import launcher, upstream
from nemo_uecr.nemo.launcher import SAVING_S, begun_by_a_step, limit_time, report_early_end
from nemo_uecr.nemo.step import StepContext
from nemo_uecr.nemo.upstream import UpstreamError
from nemo_uecr.start import nemo_form
from nemo_uecr.start.folders import free_folder
from nemo_uecr.stopping import JOB_END, RunStopped, StopRequest
from tests.config.shipped import GRPO
from tests.nemo.worlds import BASE, world


def configuration(folder: Path, *changes: str) -> Any:
    return load_nemo_config(BASE, [*GRPO, f"run.folder={folder}", *changes])


def begin(folder: Path) -> None:
    loaded = load_as(NemoConfig, BASE, [*GRPO, f"run.folder={folder}"])
    launcher.write_run_files(loaded.config, origins=loaded.origins, version="0.7.0")


def never(written: Path) -> None:
    """A configuration that is there is not compared without --resume."""
    raise AssertionError(written)


def test_without_nemo_rl_a_run_stops_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nemo_rl", None)
    monkeypatch.delitem(sys.modules, "nemo_rl.package_info", raising=False)
    world(tmp_path)
    config = configuration(tmp_path / "run", f"data.train={tmp_path}/p.jsonl")
    with pytest.raises(UpstreamError, match=r"^NeMo-RL cannot be imported .*$"):
        nemo_form.train(config, resume=False, origins={})


def test_checkpoints_of_another_hand_are_not_continued(tmp_path: Path) -> None:
    """NeMo-RL would go on from them without a word."""
    (tmp_path / "checkpoints" / "step_20").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="add --resume"):
        free_folder(tmp_path, never, resume=False)


def test_a_run_that_failed_before_its_first_step_can_be_begun_again(tmp_path: Path) -> None:
    def fail(completed: int) -> None:
        with contextlib.suppress(ZeroDivisionError), begun_by_a_step(configuration(tmp_path), lambda: completed):
            begin(tmp_path)
            raise ZeroDivisionError

    fail(0)
    free_folder(tmp_path, never, resume=False)
    fail(1)
    fail(0)  # a continued run that failed: what was there stays
    with pytest.raises(RunFolderError, match="add --resume"):
        free_folder(tmp_path, never, resume=False)


def test_an_early_end_says_where_it_saved() -> None:
    stop = StopRequest()
    stop.ask("SIGUSR1")
    config = load_nemo_config(BASE, [*GRPO, "train.steps=40"])
    with pytest.raises(RunStopped, match=r"stopped by SIGUSR1 after step 7 of 40; .*/checkpoints/step_7 is complete"):
        report_early_end(stop, config, completed=7)
    report_early_end(stop, config, completed=40)  # the last step was under way: the run is complete
    saves_nothing = load_nemo_config(BASE, [*GRPO, "train.steps=40", "checkpoint.every=0"])
    with pytest.raises(RunFolderError, match=r"checkpoint.every=0: nothing was saved"):
        report_early_end(stop, saves_nothing, completed=0)


def test_the_job_s_end_becomes_nemo_rl_s_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    native: Any = SimpleNamespace(checkpointing={"checkpoint_must_save_by": None})
    monkeypatch.delenv(JOB_END, raising=False)
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] is None
    monkeypatch.setenv(JOB_END, str(time.time() + 7384 + SAVING_S + 0.9))
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] == "00:00:00:7384"
    monkeypatch.setenv(JOB_END, str(time.time() + 1))  # too late for anything: after the first step
    limit_time(native)
    assert native.checkpointing["checkpoint_must_save_by"] == "00:00:00:00"


def test_a_continued_run_counts_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules and seeds are functions of the completed steps, here seven; evaluations after them are forgotten."""
    contexts: list[StepContext] = []
    found: list[int] = []

    def watched(*args: Any, **given: Any) -> StepContext:
        contexts.append(StepContext(*args, **given))
        return contexts[-1]

    def run_loop(*args: Any, make_policy: Any, before: Any) -> int:
        before(SimpleNamespace(checkpointing={}), 7)
        found.append(contexts[-1].completed_steps)
        return 7

    monkeypatch.setattr(launcher, "StepContext", watched)
    monkeypatch.setattr(upstream, "register_environment", lambda name, actor: None)
    monkeypatch.setattr(upstream, "prepare_run", lambda native: (None, None, {"problems": None}))
    monkeypatch.setattr(upstream, "run_loop", run_loop)
    monkeypatch.setattr(upstream, "substitutions", lambda **given: contextlib.nullcontext())
    config = load_nemo_config(BASE, world(tmp_path))
    (tmp_path / "run").mkdir()
    evaluations = tmp_path / "run" / "evaluation.jsonl"
    evaluations.write_text("".join(json.dumps({"step": step}) + "\n" for step in (0, 7, 14)))
    records = {"origins": {}, "version": "0.7.0"}
    launcher._run(config, None, None, None, records)
    assert found == [7]
    assert [json.loads(line)["step"] for line in evaluations.read_text().splitlines()] == [0, 7]
