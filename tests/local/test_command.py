"""The real command in a process of its own: its exit codes, its one line, kill -9 and --resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from tests.local.tiny import Assets, outcome, same, train_words

ROOT = Path(__file__).resolve().parents[2]


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The error of a command that must fail: exit code 2 and one line that begins with the program's name."""
    capsys.readouterr()
    assert entry_point(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nemo-uecr: error: ")]
    assert len(lines) == 1
    return lines[0]


def test_kill_dash_nine_and_resume(tmp_path: Path, tiny: Assets) -> None:
    """A real process, killed after its second step is on disk, ends as if nothing had happened."""
    busy = ("train.steps=40", "checkpoint.every=1", "rollout.max_response_tokens=6")
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "nemo_uecr", *train_words(tiny, folder, *busy)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not (folder / "checkpoints" / "step-000002").is_dir() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    steps = len((folder / "metrics.jsonl").read_text().splitlines())
    assert 2 <= steps < 40
    last = max(int(path.name[-6:]) for path in (folder / "checkpoints").glob("step-*"))
    ends = f"train.steps={last + 1}"
    assert entry_point([*train_words(tiny, folder, *busy, ends), "--resume"]) == 0
    from tests.local.tiny import run

    whole = outcome(run(tmp_path / "whole", *busy, ends))
    found = outcome(folder)
    assert len(found["metrics"]) == last + 1  # type: ignore[arg-type]
    assert same(found, whole, ignoring=("config.yaml", "origins.json")) == []


def test_error_of_a_process_is_one_line_and_code_2(tmp_path: Path, tiny: Assets) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_uecr", *train_words(tiny, tmp_path / "run", "teacher.model_name=/missing")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "nemo-uecr: error: teacher.model_name '/missing' is no model folder (no config.json); "
        "expected a folder or a hub name"
    ]


def test_damaged_checkpoint(tmp_path: Path, tiny: Assets, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = train_words(tiny, tmp_path / "run", "train.steps=1")
    assert entry_point(arguments) == 0
    assert "already holds a run; add --resume" in refused(capsys, arguments)
    weights = tmp_path / "run" / "checkpoints" / "step-000001" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "the checkpoint is corrupt" in refused(capsys, [*arguments, "--resume"])
    assert "method.rho=0.5, this run has 0.1" in refused(capsys, [*arguments, "method.rho=0.1", "--resume"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.train=/missing.jsonl",), "/missing.jsonl: no such file"),
        (("data.max_prompt_tokens=3",), "more than data.max_prompt_tokens=3 tokens"),
        (("data.answer_key=final",), "problems.jsonl:1: no field 'final'"),
        (("student.model_name=/missing",), "student.model_name '/missing' is no model folder"),
        (("method.rho=1.0",), "method.rho"),
        (("rollout.responses_per_prompt=1",), "rollout.responses_per_prompt"),
        (("device=cuda",), "torch sees no GPU"),
        (("run.folder=/dev/null/run",), "Not a directory"),
        (("evaluation.benchmarks={a: /missing.jsonl}",), "/missing.jsonl: no such file"),
    ],
)
def test_bad_input(
    tmp_path: Path, tiny: Assets, capsys: pytest.CaptureFixture[str], overrides: tuple[str, ...], message: str
) -> None:
    import torch

    if overrides == ("device=cuda",) and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert message in refused(capsys, train_words(tiny, tmp_path / "run", *overrides))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_interrupt_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Assets) -> None:
    """Ctrl-C in the middle of a save: code 130, no leftovers, and the run resumes."""
    from nemo_uecr.local import checkpoint

    real = checkpoint.optimizer_tensors
    calls = []

    def interrupted(optimizer):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(optimizer)

    monkeypatch.setattr(checkpoint, "optimizer_tensors", interrupted)
    arguments = train_words(tiny, tmp_path / "run", "train.steps=3", "checkpoint.every=1")
    assert entry_point(arguments) == 130
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001"]
    monkeypatch.undo()
    assert entry_point([*arguments, "--resume"]) == 0
    from tests.local.tiny import metrics

    assert len(metrics(tmp_path / "run")) == 3


def test_tiny_helper_trains_like_the_command(tmp_path: Path, tiny: Assets) -> None:
    """The other tests call the function beneath the command; both give the same run."""
    from tests.local.tiny import run

    assert entry_point(train_words(tiny, tmp_path / "command")) == 0
    ours = outcome(run(tmp_path / "function"))
    assert same(outcome(tmp_path / "command"), ours) == []
