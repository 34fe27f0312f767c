"""`replay` on a saved batch; and a run packed, unpacked elsewhere and replayed: its advantages come out again."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from nemo_uecr.cli.main import entry_point
from tests.local import tiny
from tests.reliability.commands import refused

ALL = ("alpha=1", "rho=.5", "tau_delta=1", "tau_entropy=1", "step=4", "seed=3")
COMPONENTS = {"advantage_unified", "advantage_task", "advantage_teacher", "teacher_reward"}
TOKENS = {"weight", "residual", "direction", "confidence"}
#: Promised beside `advantage`.
PROMISED = {
    "uecr": COMPONENTS | TOKENS,
    "puu": COMPONENTS,
    "grpo_plus_opd": {"advantage_opd", "advantage_task", "teacher_reward"},
    "distilled_rl": {"weight", "advantage_task", "teacher_reward"},
}


def made() -> dict[str, Tensor]:
    """Six ragged responses of two interleaved prompts; NaN where nothing was sampled, and a hole."""
    generator = torch.Generator().manual_seed(0)
    length = torch.tensor([5, 2, 7, 1, 4, 3])
    mask = torch.arange(7).unsqueeze(0) < length.unsqueeze(1)
    mask[2, 3] = False
    old = -torch.rand(6, 7, generator=generator) - 0.1
    teacher = old + torch.randn(6, 7, generator=generator)
    entropy = torch.rand(6, 7, generator=generator)
    fields = {"old_logp": old, "teacher_logp": teacher, "teacher_entropy": entropy, "initial_logp": old - 0.5}
    return {
        "task_reward": torch.tensor([1.0, 0, 0, 1, 1, 0]),
        "group": torch.tensor([3, 8, 3, 8, 3, 8]),
        "mask": mask,
        **{name: value.masked_fill(~mask, math.nan) for name, value in fields.items()},
    }


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    return write(tmp_path / "batch.safetensors", made())


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def replay(batch: Path, out: Path, method: str, *settings: str) -> dict[str, Tensor]:
    assert entry_point(["replay", str(batch), "--method", method, "--set", *settings, "--out", str(out)]) == 0
    return load_file(out)


@pytest.mark.parametrize("name", PROMISED)
def test_what_a_method_writes(batch: Path, tmp_path: Path, name: str) -> None:
    found = replay(batch, tmp_path / "out.safetensors", name, *ALL)
    assert {"advantage"} | PROMISED[name] <= found.keys()
    mask = made()["mask"]
    for key in {"advantage", "advantage_opd", *TOKENS} & found.keys():
        assert found[key].shape == mask.shape
        assert bool(found[key].isfinite().all())
    assert bool((found["advantage"][~mask] == 0).all())


def test_each_setting_reaches_the_method(batch: Path, tmp_path: Path) -> None:
    def advantage(method: str, *settings: str) -> Tensor:
        return replay(batch, tmp_path / "out.safetensors", method, *ALL, *settings)["advantage"]

    for method, *settings in (
        ("shuffled_entropy", "seed=1"), ("atod", "step=80"), ("grpo", "std=sample"), ("grpo", "std_floor=2"),
        ("g_opd", "parameters.extrapolation=2"),
    ):  # fmt: skip
        assert not torch.equal(advantage(method, *settings), advantage(method)), settings


BAD = {
    "no mask": ({name: tensor for name, tensor in made().items() if name != "mask"}, "uecr", ALL, "no tensor 'mask'"),
    "nan score": (
        made() | {"teacher_logp": made()["teacher_logp"] * math.nan},
        "uecr",
        ALL,
        "teacher_logp of response",
    ),
    "unknown method": (made(), "uerc", ALL, "the nearest method is 'uecr'"),
    "unknown setting": (made(), "uecr", (*ALL, "alhpa=1"), "the nearest known key is method.alpha"),
    "unknown parameter": (made(), "rlsd", ("parameters.mixx=1",), "the nearest is 'mix'"),
    "out of range": (made(), "uecr", (*ALL, "rho=1"), "method.rho: got 1"),
    "not given": (made(), "uecr", ("alpha=1", "rho=.5", "tau_delta=1"), "method.tau_entropy: missing"),
}


@pytest.mark.parametrize(("tensors", "method", "settings", "message"), BAD.values(), ids=BAD)
def test_a_mistake_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tensors: dict[str, Tensor],
    method: str,
    settings: tuple[str, ...],
    message: str,
) -> None:
    batch, out = write(tmp_path / "bad.safetensors", tensors), tmp_path / "out.safetensors"
    assert message in refused(capsys, "replay", batch, "--method", method, "--set", *settings, "--out", out)
    assert [path.name for path in tmp_path.iterdir()] == [batch.name]


def test_the_batch_itself_is_not_written_over(batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = batch.read_bytes()
    assert "is the input itself" in refused(capsys, "replay", batch, "--method", "uecr", "--set", *ALL, "--out", batch)
    assert batch.read_bytes() == before


# A run


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


def test_options_that_do_not_go_together(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "save_batch_every > 0" in refused(capsys, "replay", tmp_path, "--check")
    assert "drop --method" in refused(capsys, "replay", run, "--check", "--method", "uecr")
    assert "expected --method NAME and --out OUT" in refused(capsys, "replay", run)


def test_a_running_run_is_not_packed(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "busy"
    shutil.copytree(run, there)
    with (there / "run.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use by a run" in refused(capsys, "pack", there, tmp_path / "a.tar.gz")
    assert "no config.yaml" in refused(capsys, "pack", tmp_path, tmp_path / "a.tar.gz")


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
