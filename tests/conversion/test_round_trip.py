"""Hugging Face to Megatron by the bridge and back by the command, the traps on the way, and a kill in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_uecr.conversion.bridge import Bridge
from nemo_uecr.nemo import upstream
from nemo_uecr.nemo.model_folders import conversion
from tests.conftest import ROOT
from tests.conversion.folders import hf_model
from tests.conversion.real import converted, marks, tensors
from tests.conversion.saved import imported
from tests.reliability.commands import refused

pytestmark = marks

SMALL = 2e-5
"""Gigabytes of a weight file, so that the tiny model has several."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hf_model(tmp_path_factory.mktemp("hf") / "model", tied=False, shard="20KB")


@pytest.fixture(scope="module")
def megatron(whole: Path) -> Path:
    return imported(whole, whole.parent / "megatron")


@pytest.mark.parametrize(("tied", "dtype"), [(True, "float32"), (False, "bfloat16")])
def test_there_and_back_is_bitwise(tied: bool, dtype: str, tmp_path: Path) -> None:
    model = hf_model(tmp_path / "model", tied=tied, dtype=dtype)
    imported(model, tmp_path / "megatron")
    converted(tmp_path / "megatron", "--to", tmp_path / "back", "--hf", model, "--shard-gb", SMALL, "--tolerance", 1e-5)
    before, after = tensors(model), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) and value.dtype == after[name].dtype for name, value in before.items())
    assert len(list((tmp_path / "back").glob("model-*.safetensors"))) > 1
    assert "the same model" in converted(tmp_path / "back", "--check")


def test_a_run_takes_what_the_bridge_has_finished(megatron: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo-RL converts with the same function of the bridge."""
    monkeypatch.setattr(upstream, "conversion_folder", lambda *_: megatron)
    assert conversion("uecr.teacher", "owner/name", {}, hashed=False).endswith("is used")


def test_a_lost_rope_base_is_found(
    whole: Path, megatron: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the bridge does by itself with transformers 5: every weight is right, and the base is 10000."""
    settings = Bridge._settings

    def forgetful(self: Bridge) -> dict[str, Any]:
        return settings(self) | {"rotary_base": 10000.0}

    monkeypatch.setattr(Bridge, "_settings", forgetful)
    assert "not the same model" in refused(capsys, "convert", megatron, "--to", tmp_path / "out", "--hf", whole)
    assert not any(tmp_path.iterdir())


def test_a_change_too_small_for_the_scores_is_found_by_its_hash(
    whole: Path, megatron: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    converted(megatron, "--to", out, "--hf", whole)
    with (out / "generation_config.json").open("a") as file:
        file.write(" ")
    assert "generation_config.json: content changed since the conversion" in refused(capsys, "convert", out, "--check")


VERIFIED = """
import os, signal, sys
from nemo_uecr.conversion import proof
from nemo_uecr.cli.main import entry_point

def dying(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

proof.compare = dying
entry_point(["convert", *sys.argv[1:]])
"""


def test_killed_at_the_end_of_the_verification(whole: Path, megatron: Path, tmp_path: Path) -> None:
    """All is written and scored, and still nothing stands under the asked name."""
    arguments = (megatron, "--to", tmp_path / "out", "--hf", whole)
    ended = subprocess.run([sys.executable, "-c", VERIFIED, *map(str, arguments)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    assert "the same model" in converted(*arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
