"""A run packed, unpacked elsewhere and replayed: its advantages come out again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nemo_uecr.cli.main import entry_point
from tests.local import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.run(tmp_path_factory.mktemp("replay") / "run", "telemetry.save_batch_every=1")


def header(path: Path) -> dict[str, str]:
    with safe_open(str(path), framework="pt") as file:
        return dict(file.metadata())


def test_packed_unpacked_and_replayed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, there = tmp_path / "run.tar.gz", tmp_path / "elsewhere"
    assert entry_point(["pack", str(run), str(archive)]) == 0
    assert entry_point(["unpack", str(archive), str(there)]) == 0
    capsys.readouterr()
    assert entry_point(["replay", str(there), "--check"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "step-000001.safetensors: bit for bit (the run's own arithmetic)"
    assert told[-1] == "2 of 2 saved steps reproduced"


def test_a_saved_step_that_is_gone_is_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "run"
    shutil.copytree(run, there)
    (there / "batches" / "step-000002.safetensors").unlink()
    assert entry_point(["replay", str(there), "--check"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "step-000002.safetensors: missing, the run's list of files has it: NOT REPRODUCED"
    assert told[-1] == "1 of 2 saved steps reproduced"


def test_a_saved_step_that_was_altered_is_said(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the advantages would come out again: a constant added to every reward changes none."""
    there = tmp_path / "run"
    shutil.copytree(run, there)
    path = there / "batches" / "step-000001.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"task_reward": tensors["task_reward"] + 1}, path, metadata=header(path))
    for given, last in ((there, "1 of 2 saved steps reproduced"), (path, "0 of 1 saved steps reproduced")):
        assert entry_point(["replay", str(given), "--check"]) == 1
        told = capsys.readouterr().out.splitlines()
        assert told[0] == "step-000001.safetensors: content changed, by the run's list of files: NOT REPRODUCED"
        assert told[-1] == last


def test_another_process_gives_the_same_bits(run: Path) -> None:
    words = [sys.executable, "-m", "nemo_uecr", "replay", str(run), "--check"]
    env = os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bit for bit") == 2


def altered(run: Path, tmp_path: Path, *, by: float, arithmetic: str | None) -> Path:
    """A copy of a saved step with one advantage moved."""
    source, target = run / "batches" / "step-000001.safetensors", tmp_path / "step.safetensors"
    tensors, told = load_file(source), header(source)
    row, column = (tensors["advantage"] != 0).nonzero()[0].tolist()
    tensors["advantage"][row, column] += by
    if arithmetic is not None:
        told["arithmetic"] = arithmetic
    save_file(tensors, target, metadata=told)
    return target


@pytest.mark.parametrize(
    ("by", "arithmetic", "code"),
    [(0.0, None, 0), (3e-7, None, 1), (3e-7, "another machine", 0), (1e-5, "another machine", 1)],
)
def test_a_changed_advantage_is_seen(run: Path, tmp_path: Path, by: float, arithmetic: str | None, code: int) -> None:
    """Bit for bit on the run's own arithmetic, 1e-6 elsewhere."""
    assert entry_point(["replay", str(altered(run, tmp_path, by=by, arithmetic=arithmetic)), "--check"]) == code


def test_refusals(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(run / "batches" / "step-000001.safetensors")
    del tensors["advantage"]
    bare = tmp_path / "bare.safetensors"
    save_file(tensors, bare, metadata={"method": "uecr"})
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, message in (
        ([str(bare), "--check"], "no saved advantages"),
        ([str(empty), "--check"], "save_batch_every > 0"),
        ([str(run), "--check", "--method", "uecr"], "drop --method"),
        ([str(bare)], "expected --method NAME and --out OUT"),
    ):
        assert entry_point(["replay", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_running_run_is_not_packed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    there = tmp_path / "busy"
    shutil.copytree(run, there)
    with (there / "run.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert entry_point(["pack", str(there), str(tmp_path / "a.tar.gz")]) == 2
    assert "in use by a run" in capsys.readouterr().err
    assert entry_point(["pack", str(tmp_path), str(tmp_path / "a.tar.gz")]) == 2
    assert "no config.yaml" in capsys.readouterr().err


def test_verify_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run by the command has its own objective, so nothing at all is different."""
    folder = tmp_path / "run"
    words = [str(tiny.assets().config), *tiny.SMALL, f"run.folder={folder}", "train.steps=1"]
    assert entry_point(["train", *words]) == 0
    capsys.readouterr()
    assert entry_point(["report", "--verify", str(folder)]) == 0
    assert ", 0 changed, 0 not checked" in capsys.readouterr().out
    with (folder / "config.yaml").open("a") as file:
        file.write("\n")
    assert entry_point(["report", "--verify", str(folder)]) == 1
    assert "changed: config.yaml: content changed" in capsys.readouterr().out
