"""A violated invariant or a number that is not finite stops the run, names the sample and leaves a replayable batch."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_uecr.cli.main import entry_point
from nemo_uecr.core import invariants
from nemo_uecr.core.methods.uecr import Uecr
from nemo_uecr.errors import InvariantError, ScoreError
from nemo_uecr.local import trainer
from tests.local import tiny
from tests.responses.tables import tensors_of


def failure(folder: Path, kept: str = "responses.parquet") -> dict[str, str]:
    """The record that was left, checked for what every one has."""
    record = json.loads((folder / "failure" / "failure.json").read_text())
    assert set(record) == {"step", "error", "kind", "sample", "command"}
    assert "\n" not in record["error"]
    assert sorted(path.name for path in (folder / "failure").iterdir()) == sorted([kept, "failure.json"])
    return record


def with_nan(model: Path, folder: Path) -> Path:
    """A copy of a model folder with one weight that is no number."""
    broken = Path(shutil.copytree(model, folder))
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    return broken


def replay(record: dict[str, str]) -> int:
    words = shlex.split(record["command"])
    assert words[:2] == ["nemo-uecr", "replay"]
    return entry_point(words[1:])


def test_nan_in_the_teacher(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = with_nan(tiny.TEACHER, tmp_path / "broken")
    with pytest.raises(ScoreError) as error:
        tiny.run(tmp_path / "run", f"teacher.model_name={broken}")
    assert str(error.value).startswith("teacher_logp of response 0 (step 1, problem p")
    assert "at token 0 is nan; expected a finite number of nats" in str(error.value)
    record = failure(tmp_path / "run")
    assert (record["step"], record["kind"], record["error"]) == (1, "ScoreError", str(error.value))
    assert record["sample"].startswith("step 1, problem p")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    # replay reads the batch and reports the same fault
    assert replay(record) == 2
    assert re.search(
        r"error: \S*responses.parquet: teacher_(logp|entropy) of response 0 at token 0 is nan", capsys.readouterr().err
    )
    assert not (tmp_path / "run" / "failure" / "advantages.parquet").exists()


def test_violated_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual is no longer centred, as if the projection had been forgotten."""

    before = tiny.run(tmp_path / "good", "train.steps=1", "telemetry.save_batch_every=1")
    real = Uecr.residual

    def unprojected(*read):  # type: ignore[no-untyped-def]
        parts = real(*read)
        return parts._replace(q_BT=0.5 * parts.c_BT * parts.d_BT)

    monkeypatch.setattr(Uecr, "residual", unprojected)
    monkeypatch.setattr(invariants, "smoke_test", lambda *_: None)  # it would find this before a model is loaded
    with pytest.raises(InvariantError, match=r"identity 'budget' .* at response \d \(step 1, problem p\d, row \d\)"):
        tiny.run(tmp_path / "run", "train.steps=1")
    record = failure(tmp_path / "run")
    assert record["kind"] == "InvariantError"
    assert record["sample"] is not None
    # the batch is the one of the step, complete, and replay accepts it
    left, good = tensors_of(tmp_path / "run" / "failure" / "responses.parquet"), tiny.tensors(before)
    # the advantages that were refused are not kept, and only a step that is saved ranks
    assert left.keys() == good.keys() - {"advantage", "weight", "teacher_rank"}
    assert all(torch.equal(left[name].nan_to_num(7), good[name].nan_to_num(7)) for name in left)
    monkeypatch.undo()
    assert replay(record) == 0
    assert (tmp_path / "run" / "failure" / "advantages.parquet").is_file()


def test_student_that_cannot_be_sampled_leaves_its_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing can be drawn from logits that are not finite: the batch ends there, and replay finds the place."""
    broken = with_nan(tiny.STUDENT, tmp_path / "broken")
    with pytest.raises(ScoreError, match=r"^the student .* gives logits .* \(step 1, problem p\d, row 0\) at token 0;"):
        tiny.run(tmp_path / "run", f"student.model_name={broken}")
    record = failure(tmp_path / "run")
    assert record["sample"].endswith("row 0")
    left = tensors_of(tmp_path / "run" / "failure" / "responses.parquet")
    assert left["sampled"].sum(dim=1).tolist() == [1] * 8  # the end token that stands for the one that was not drawn
    assert bool(left["old_logp"].isnan().all())
    assert replay(record) == 2
    assert "old_logp of response 0 at token 0 is nan" in capsys.readouterr().err


def test_ratio_that_is_not_one_at_the_first_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring at another temperature than training: the fault that the check is for."""
    real = trainer.score_policy

    def wrong_temperature(*read, rollout_temperature, **asked):  # type: ignore[no-untyped-def]
        return real(*read, rollout_temperature=rollout_temperature + 0.01, **asked)

    monkeypatch.setattr(trainer, "score_policy", wrong_temperature)
    with pytest.raises(InvariantError, match=r"first update differs from 1 by .*tolerances\.first_ratio=1e-05"):
        tiny.run(tmp_path / "run")
    record = failure(tmp_path / "run")
    named = re.search(r"at response (\d) \((step 1, problem p\d, row \1)\) at token (\d)", record["error"])
    assert named is not None
    assert record["sample"] == named[2]
