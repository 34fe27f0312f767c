"""`replay` on a saved batch; and a run packed, unpacked elsewhere, replayed and verified: its advantages come again."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_uecr.cli.main import entry_point
from nemo_uecr.files import locked
from tests.local import tiny
from tests.reliability.commands import refused

ALL = ("alpha=1", "rho=.5", "tau_delta=1", "tau_entropy=1", "step=4", "seed=3")


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    """Four ragged responses of two interleaved prompts; NaN where nothing was sampled, and a hole."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 0, 1], [1, 1, 0]]).bool()
    old = torch.tensor([[-0.5, -1.0, -0.2], [-0.7, 0, 0], [-0.1, 0, -0.9], [-0.3, -0.4, 0]])
    scores = {"old_logp": old, "teacher_logp": 2 * old, "teacher_entropy": -old, "initial_logp": old - 0.5}
    tensors = {"task_reward": torch.tensor([1.0, 0, 0, 1]), "group": torch.tensor([3, 8, 3, 8]), "mask": mask}
    tensors |= {name: value.masked_fill(~mask, math.nan) for name, value in scores.items()}
    save_file(tensors, tmp_path / "batch.safetensors")
    return tmp_path / "batch.safetensors"


def test_the_advantages_and_components_of_a_method(batch: Path) -> None:
    out = batch.with_name("out.safetensors")
    assert entry_point(["replay", str(batch), "--method", "uecr", "--set", *ALL, "--out", str(out)]) == 0
    found, mask = load_file(out), load_file(batch)["mask"]
    components = {"advantage_unified", "advantage_task", "advantage_teacher", "teacher_reward"}
    assert components | {"weight", "residual", "direction", "confidence"} <= found.keys()
    assert bool(found["advantage"].isfinite().all())
    assert bool((found["advantage"][~mask] == 0).all())


def test_what_cannot_be_replayed_is_one_line(batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other = batch.with_name("out.safetensors"), batch.with_name("other.safetensors")
    save_file({name: tensor for name, tensor in load_file(batch).items() if name != "mask"}, other)
    for given, words, target, message in (
        (batch, ("uerc", *ALL), out, "the nearest method is 'uecr'"),
        (batch, ("uecr", *ALL, "step=soon"), out, "soon"),
        (batch, ("uecr", "alpha=1", "rho=.5", "tau_delta=1"), out, "method.tau_entropy: missing"),
        (batch, ("uecr", *ALL), batch, "is the input itself"),
        (other, ("uecr", *ALL), out, "no tensor 'mask'"),
    ):
        name, *settings = words
        assert message in refused(capsys, "replay", given, "--method", name, "--set", *settings, "--out", target)
    assert not out.exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by the command, so that it has its own objective, and a record of it."""
    folder = tmp_path_factory.mktemp("replay") / "run"
    words = [str(tiny.assets().config), *tiny.SMALL, f"run.folder={folder}", "telemetry.save_batch_every=1"]
    assert entry_point(["train", *words]) == 0
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_packed_unpacked_and_replayed_by_another_process(run: Path, tmp_path: Path) -> None:
    archive, there = tmp_path / "run.tar.gz", tmp_path / "elsewhere"
    assert entry_point(["pack", str(run), str(archive)]) == 0
    there.mkdir()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(there)], check=True)
    assert entry_point(["report", str(there), "--verify"]) == 0
    words = [sys.executable, "-m", "nemo_uecr", "replay", str(there), "--check"]
    env = os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    same = [f"step-{step:06d}.safetensors: bit for bit (the run's own arithmetic)" for step in (1, 2)]
    assert done.stdout.splitlines() == [*same, "2 of 2 saved steps reproduced"]


def test_verify_finds_what_changed(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_point(["report", "--verify", str(copy)]) == 0
    assert ", 0 changed, 0 not checked" in capsys.readouterr().out
    with (copy / "config.yaml").open("a") as file:
        file.write("\n")
    assert entry_point(["report", "--verify", str(copy)]) == 1
    assert "changed: config.yaml: content changed" in capsys.readouterr().out


def test_what_cannot_be_packed_or_replayed(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "save_batch_every > 0" in refused(capsys, "replay", tmp_path, "--check")
    for words in (["--check", "--method", "uecr"], []):
        assert "expected --check alone" in refused(capsys, "replay", copy, *words)
    assert "no config.yaml" in refused(capsys, "pack", tmp_path, tmp_path / "a.tar.gz")
    with locked(copy):
        assert "in use by a run" in refused(capsys, "pack", copy, tmp_path / "a.tar.gz")
