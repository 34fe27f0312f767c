"""A run is repeatable, resumes as if it had never stopped, and keeps its newest and best checkpoints."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from pathlib import Path

import pytest

from nemo_uecr.errors import CheckpointError, RunFolderError
from nemo_uecr.generation.trained import trained_model
from nemo_uecr.local.trainer import Trainer
from nemo_uecr.report.credit import credit_fault
from nemo_uecr.stopping import RunStopped, StopRequest
from nemo_uecr.telemetry.run_folder import read_run
from tests.local import tiny
from tests.local.tiny import every, outcome, same
from tests.reliability.commands import refused


def test_same_run_twice_is_the_same(tmp_path: Path, trained: Path) -> None:
    assert same(outcome(tiny.run(tmp_path / "again", *every())), outcome(trained)) == []


@pytest.mark.parametrize(  # what is drawn ahead goes on, and so does the state of the last two
    ("method", "steps"),
    [
        ((), 2),
        (("rollout.lag=2",), 2),
        (("rollout.lag=2",), 4),
        (("method.name=uecr_trust", "run.seed=1"), 2),
        (("method.name=saf_opd", "method.warmup=1"), 4),
    ],
)
def test_a_run_goes_on(method: tuple[str, ...], steps: int, tmp_path: Path) -> None:
    """With more steps, or after it was asked to stop: the length of a run of `saf_opd` is fixed."""
    same_in_both = ("checkpoint.every=2", "train.warmup_steps=5", *method)
    long = tiny.run(tmp_path / "long", "train.steps=4", *same_in_both)
    short, stop = tmp_path / "short", StopRequest()
    if steps == 4:
        stop.ask("the test")  # after its first step
    with contextlib.suppress(RunStopped):
        tiny.run(short, f"train.steps={steps}", *same_in_both, stop=stop)
    assert len(tiny.metrics(short)) in (1, 2)
    tiny.run(short, "train.steps=4", *same_in_both, resume=True)
    assert same(outcome(short), outcome(long), ignoring=("config.yaml",)) == []
    assert all(record.get("trust/kappa", 1.0) > 0 for record in tiny.metrics(short))  # what was carried is followed


def test_another_configuration_and_a_second_run_are_refused(tmp_path: Path, trained: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    before = outcome(folder)
    with pytest.raises(CheckpointError, match=r"method\.rho=0\.5, this run has 0\.25"):
        tiny.run(folder, *every(), "method.rho=0.25", resume=True)
    with pytest.raises(RunFolderError, match="already holds a run; add --resume"):
        tiny.run(folder, *every())
    with pytest.raises(CheckpointError, match=r"train\.steps=1, but .*step-000002 is later: raise it"):
        tiny.run(folder, *every(), "train.steps=1", resume=True)
    assert same(outcome(folder), before) == []


def test_a_run_of_a_method_s_earlier_equation_is_refused_by_name(tmp_path: Path, trained: Path) -> None:
    """A record without a revision is of the first one; the report of such a run says why it has no credit map."""
    folder, method = Path(shutil.copytree(trained, tmp_path / "run")), "method.name=uecr_trust"
    record = folder / "provenance.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"method_revision": 0}))
    before = outcome(folder)
    said = "run was made by revision 0 of uecr, whose equation has changed since; expected revision 1"
    with pytest.raises(CheckpointError, match=said):
        tiny.run(folder, *every(), resume=True)
    assert same(outcome(folder), before) == []
    assert said in (credit_fault(read_run(folder)) or "")

    written = tiny.run(tmp_path / "trust", *every(), method, "train.steps=1")
    record = written / "provenance.json"
    kept = json.loads(record.read_text())
    assert kept.pop("method_revision") == 2
    record.write_text(json.dumps(kept))
    with pytest.raises(CheckpointError, match=r"trust was made by revision 1 of uecr_trust, .* expected revision 2"):
        tiny.run(written, *every(), method, "train.steps=2", resume=True)


def test_resume_says_where_no_run_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A mistyped folder; a job that was requeued before its first checkpoint goes on all the same."""
    with caplog.at_level(logging.INFO, logger="nemo_uecr"):
        tiny.run(tmp_path / "mistyped", resume=True)
        assert f"{tmp_path / 'mistyped'} has no checkpoint to resume from: a new run begins" in caplog.messages
        caplog.clear()
        tiny.run(tmp_path / "mistyped", resume=True)
        assert not any("a new run begins" in message for message in caplog.messages)
        assert any(message.startswith("already complete after step 2 of 2: ") for message in caplog.messages)


def test_keep_last_and_best(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The best step's checkpoint stays although it is older than the newest kept ones; if it is gone, a later one."""
    averages = iter((0.1, 0.9, 0.3, 0.9, 0.2, 0.4, 0.3))
    monkeypatch.setattr(Trainer, "_evaluate", lambda self, step: next(averages))
    saved = ("checkpoint.keep_last=2", "checkpoint.keep_best=true", "train.steps=5")
    folder = tiny.run(tmp_path / "run", *every(), *saved)
    kept = [path.name for path in sorted((folder / "checkpoints").iterdir())]
    assert kept == ["step-000002", "step-000004", "step-000005"]
    state = json.loads((folder / "checkpoints" / "step-000005" / "state.json").read_text())
    assert (state["position"]["best_step"], state["position"]["best_average"]) == (2, 0.9)
    shutil.rmtree(folder / "checkpoints" / "step-000002")
    for words in (("export", folder, "--merged", tmp_path / "out"), tiny.evaluation(folder, tmp_path / "out")):
        gone = "step-000002, the best of the run, is gone; name one that is there: step-000004, step-000005"
        assert gone in refused(capsys, *words)
    tiny.run(folder, *every(), "checkpoint.keep_last=1", "checkpoint.keep_best=true", "train.steps=7", resume=True)
    assert caplog.text.count("step-000002, the best, is gone") == 1
    assert trained_model(folder) == folder / "checkpoints" / "step-000006"


def test_changed_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_bytes(tiny.assets().problems.read_bytes())
    changes = ("train.steps=2", "checkpoint.every=1", f"data.train={data}")
    tiny.run(tmp_path / "run", *changes)
    data.write_bytes(data.read_bytes().replace(b'"answer"', b' "answer"', 1))
    with pytest.raises(CheckpointError, match="input 'train': sha256"):
        tiny.run(tmp_path / "run", *changes, resume=True)
