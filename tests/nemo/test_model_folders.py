"""Conversions that NeMo-RL has made of a model: used while they are whole and of the present weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nemo_uecr.errors import DataError
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.model_folders import conversion


def finished(made: Path) -> None:
    """As Megatron-Bridge writes it: the shards, its two trackers, and run_config.yaml last."""
    (made / "iter_0000000").mkdir(parents=True)
    for name in ("latest_train_state.pt", "latest_checkpointed_iteration.txt", "iter_0000000/run_config.yaml"):
        (made / name).touch()


def model(folder: Path, *, at: int) -> Path:
    """A model folder whose files were written at a time in seconds; returns its weights."""
    folder.mkdir(exist_ok=True)
    weights = folder / "model.safetensors"
    for file in (weights, folder / "config.json"):
        file.write_bytes(b"weights")
        os.utime(file, (at, at))
    return weights


@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_an_interrupted_conversion_is_never_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo-RL looks whether iter_0000000 is there, which it makes first."""
    monkeypatch.setattr(upstream, "native", lambda name: lambda: str(tmp_path / "cache"))
    model(tmp_path / "teacher", at=1)
    name = "owner/name" if kind == "hub" else str(tmp_path / "teacher")
    made = tmp_path / "cache" / (name if kind == "hub" else f"model_{name.replace('/', '_')}")
    assert conversion("uecr.teacher", name, {}, hashed=False).endswith("will be made")
    finished(made)
    assert conversion("uecr.teacher", name, {}, hashed=False).endswith("is used")
    for part in ("iter_0000000/run_config.yaml", "latest_*"):
        for path in made.glob(part):
            path.unlink()
        with pytest.raises(DataError, match=r"^uecr\.teacher\.model_name: .* was interrupted; remove it"):
            conversion("uecr.teacher", name, {}, hashed=False)
        (made / "iter_0000000/run_config.yaml").touch()


def test_the_conversion_of_other_weights_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher is made again in its folder."""
    made = tmp_path / "cache" / "teacher"
    monkeypatch.setattr(upstream, "conversion_folder", lambda *_: made)
    weights = model(tmp_path / "teacher", at=10)
    conversion("policy", str(tmp_path / "teacher"), {}, hashed=False)
    finished(made)
    conversion("policy", str(tmp_path / "teacher"), {}, hashed=False)
    os.utime(weights, (11, 11))
    with pytest.raises(DataError, match=r"^policy\.model_name: model\.safetensors in .* changed since NeMo-RL's"):
        conversion("policy", str(tmp_path / "teacher"), {}, hashed=False)


def test_a_conversion_of_another_hand_is_adopted_where_it_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = tmp_path / "cache" / "teacher"
    monkeypatch.setattr(upstream, "conversion_folder", lambda *_: made)
    finished(made)
    os.utime(made / "iter_0000000" / "run_config.yaml", (20, 20))
    model(tmp_path / "teacher", at=10)
    assert conversion("policy", str(tmp_path / "teacher"), {}, hashed=False).endswith("is used")
    assert "is adopted; it is newer than the weights" in caplog.text
    made.with_name("teacher.weights.json").unlink()
    model(tmp_path / "teacher", at=30)
    with pytest.raises(DataError, match=r"^policy\.model_name: the weights in .* are newer than NeMo-RL's conversion"):
        conversion("policy", str(tmp_path / "teacher"), {}, hashed=False)


def test_weights_of_the_same_size_and_time_are_told_by_their_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash is asked for, because it reads every weight; one that was taken once holds on."""
    made, name = tmp_path / "cache" / "teacher", str(tmp_path / "teacher")
    monkeypatch.setattr(upstream, "conversion_folder", lambda *_: made)
    weights = model(tmp_path / "teacher", at=10)
    conversion("policy", name, {}, hashed=True)
    finished(made)
    conversion("policy", name, {}, hashed=False)
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, (10, 10))
    conversion("policy", name, {}, hashed=False)
    with pytest.raises(DataError, match=r"^policy\.model_name: model\.safetensors in .* changed since NeMo-RL's"):
        conversion("policy", name, {}, hashed=True)
    (tmp_path / "teacher" / "model-2.safetensors").write_bytes(b"more")
    with pytest.raises(DataError, match=r"model-2\.safetensors in .* changed"):
        conversion("policy", name, {}, hashed=False)
