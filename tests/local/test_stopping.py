"""A run that is asked to end finishes its step, saves, exits with its code, and resumes as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.stopping import STOPPED, listening
from tests.local import tiny
from tests.local.tiny import metrics, train_words


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_asks(number: signal.Signals) -> None:
    with listening() as stop:
        signal.raise_signal(number)
    assert stop.reason == number.name


def test_a_signal_saves_and_gives_the_documented_code(tmp_path: Path) -> None:
    arguments = train_words(tiny.assets(), tmp_path / "run", "train.steps=4000")
    process = subprocess.Popen(
        [sys.executable, "-m", "nemo_uecr", *arguments],
        cwd=tiny.ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    written = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (written.is_file() and written.read_text().count("\n") >= 2) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    error = process.communicate(timeout=60)[1]
    steps = len(metrics(tmp_path / "run"))
    assert process.returncode == STOPPED == 75
    assert 2 <= steps < 4000
    assert error.splitlines()[-1].startswith(f"nemo-uecr: stopped by SIGUSR1 after step {steps} of 4000; ")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [f"step-{steps:06d}"]
    assert entry_point([*train_words(tiny.assets(), tmp_path / "run", f"train.steps={steps + 1}"), "--resume"]) == 0
    assert len(metrics(tmp_path / "run")) == steps + 1
