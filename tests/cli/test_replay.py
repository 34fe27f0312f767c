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
from pyarrow import parquet

from nemo_uecr.cli.main import entry_point
from nemo_uecr.core.functions import compute
from nemo_uecr.core.methods import Method, method_of
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.files import locked
from nemo_uecr.responses.replay import scored_batch
from nemo_uecr.responses.table import read_responses
from tests.local import tiny
from tests.reliability.commands import refused
from tests.responses.tables import write_step

ALL = ("alpha=1", "rho=.5", "tau_delta=1", "tau_entropy=1", "step=4", "seed=3")


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    """Four ragged responses of two interleaved prompts; NaN where nothing was sampled, and a hole."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 0, 1], [1, 1, 0]]).bool()
    old = torch.tensor([[-0.5, -1.0, -0.2], [-0.7, 0, 0], [-0.1, 0, -0.9], [-0.3, -0.4, 0]])
    scores = {"old_logp": old, "teacher_logp": 2 * old, "teacher_entropy": -old, "initial_logp": old - 0.5}
    columns = {"reward": torch.tensor([1.0, 0, 0, 1]), "group": torch.tensor([3, 8, 3, 8]), "sampled": mask}
    columns |= {name: value.masked_fill(~mask, math.nan) for name, value in scores.items()}
    return write_step(tmp_path / "batch.parquet", columns, Grpo())


def test_the_advantages_and_components_of_a_method(batch: Path) -> None:
    out = batch.with_name("out.parquet")
    assert entry_point(["replay", str(batch), "--method", "uecr", "--set", *ALL, "--out", str(out)]) == 0
    found = read_responses(out)
    components = {"advantage_unified", "advantage_task", "advantage_teacher", "teacher_reward"}
    assert components | {"weight", "residual", "direction", "confidence"} <= {*found.names}
    assert bool(found.tokens("advantage").isfinite().all())
    expected = compute(found_method(), scored_batch(read_responses(batch)))
    assert torch.equal(found.padded("advantage"), expected.advantage_BT)
    assert found.numbers("teacher_reward").tolist() == expected.teacher_reward_B.tolist()
    # observed tokens have no value, not a 0 among the others
    assert found.column("weight")[2][1] is None
    assert found.column("old_logp")[2] == [pytest.approx(-0.1), None, pytest.approx(-0.9)]


def found_method() -> Method:
    return method_of("uecr", {"alpha": 1.0, "rho": 0.5, "tau_delta": 1.0, "tau_entropy": 1.0})


def test_what_cannot_be_replayed_is_one_line(batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, other = batch.with_name("out.parquet"), batch.with_name("other.parquet")
    parquet.write_table(parquet.read_table(batch).drop_columns(["sampled"]), other)
    for given, words, target, message in (
        (batch, ("uerc", *ALL), out, "the nearest method is 'uecr'"),
        (batch, ("uecr", *ALL, "step=soon"), out, "soon"),
        (batch, ("uecr", "alpha=1", "rho=.5", "tau_delta=1"), out, "method.tau_entropy: missing"),
        (batch, ("uecr", *ALL), batch, "is the input itself"),
        (other, ("uecr", *ALL), out, "no column 'sampled'"),
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
    same = [f"step-{step:06d}.parquet: bit for bit (the run's own arithmetic)" for step in (1, 2)]
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
    for words in (["--check"], ["--method", "grpo", "--out", tmp_path / "a.parquet"]):
        assert f"{tmp_path / 'absent'} does not exist; expected" in refused(
            capsys, "replay", tmp_path / "absent", *words
        )
    for words in (["--check", "--method", "uecr"], []):
        assert "expected --check alone" in refused(capsys, "replay", copy, *words)
    assert "no config.yaml" in refused(capsys, "pack", tmp_path, tmp_path / "a.tar.gz")
    with locked(copy):
        assert "in use by a run" in refused(capsys, "pack", copy, tmp_path / "a.tar.gz")
