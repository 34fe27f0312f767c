"""A study ended from outside: its workers end with it, and the same command makes what an undisturbed one made."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.stopping import STOPPED
from tests.study.made import study_file

pytest.importorskip("scipy", reason="the study extra is not installed")
pytest.importorskip("matplotlib", reason="the study extra is not installed")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
#: What a study measures; seconds, paths and what is made of seconds are left out.
NUMBERS = ("initial", "final", "initial_sets", "sets", "curve", "degenerate_start", "degenerate", "rewards", "samples")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def descendants(pid: int) -> set[int]:
    """Children of a process, their children, and so on."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        children |= {int(word) for word in task.read_text().split()}
    return children.union(*map(descendants, children))


def running(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(path: Path, number: signal.Signals, *, begun: Callable[[], bool]) -> int:
    """Start the study, end its first process alone as soon as something has begun, and see every other one end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nemo_uecr", "study", str(path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: begun() or process.poll() is not None)
        assert process.poll() is None
        others = descendants(process.pid)
        assert len(others) >= 2  # two workers
        process.send_signal(number)
        code = process.wait(PATIENCE)
        wait_until(lambda: not any(map(running, others)))
    finally:
        process.kill()
        process.wait()
    return code


def numbers(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    runs = json.loads((folder / "study" / "results.json").read_text())["runs"]
    return {(run["cell"]["arm"], run["cell"]["pair"]): {name: run[name] for name in NUMBERS} for run in runs}


@pytest.mark.slow
def test_a_study_killed_and_stopped_goes_on_and_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "ended").mkdir()
    (tmp_path / "whole").mkdir()
    path, study = study_file(tmp_path / "ended"), tmp_path / "ended" / "study"

    def runs(stage: str) -> int:
        return len([*(study / stage).rglob("config.yaml")])

    assert end(path, signal.SIGKILL, begun=lambda: (study / "task" / "models").is_dir()) == -signal.SIGKILL
    assert end(path, signal.SIGTERM, begun=lambda: runs("selection") > 0) == STOPPED
    assert end(path, signal.SIGKILL, begun=lambda: runs("runs") > 0) == -signal.SIGKILL
    assert runs("runs") < 4
    assert entry_point(["study", str(path)]) == 0
    assert entry_point(["study", str(study_file(tmp_path / "whole"))]) == 0
    assert numbers(tmp_path / "ended") == numbers(tmp_path / "whole")
    assert len(numbers(tmp_path / "whole")) == 4
    assert not [path for path in (study / "task").rglob(".*") if path.name != ".gitignore"]
