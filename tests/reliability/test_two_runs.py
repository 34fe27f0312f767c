"""Two runs in one folder: the second is refused in one line, and the first goes on."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.data.run_lock import locked
from nemo_uecr.errors import RunFolderError
from tests.config.test_nemo import CONFIGS
from tests.holding import held
from tests.reliability.commands import refused


def test_a_nemo_rl_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    problems = tmp_path / "train.jsonl"
    problems.write_text('{"id": "a", "question": "1", "answer": "1"}\n')
    words = ("train", CONFIGS / "qwen3_1p7b" / "grpo.yaml", f"run.folder={folder}", f"data.train={problems}")
    with held(folder) as holder:
        for resume in ((), ("--resume",)):
            assert refused(capsys, *words, *resume).startswith(f"{folder} is in use by process {holder}; wait for it")
        assert [path.name for path in folder.iterdir()] == ["run.lock"]


def test_a_nemo_rl_run_holds_its_folder_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_uecr.cli.nemo_rl import train
    from nemo_uecr.nemo_adapter import launcher

    folder = tmp_path / "run"
    seen = []

    def launch(config: Any, **rest: object) -> Path:
        with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"), locked(folder):
            pass
        seen.append(config.run.folder)
        return folder

    monkeypatch.setattr(launcher, "train", launch)
    problems = tmp_path / "train.jsonl"
    problems.write_text('{"id": "a", "question": "1", "answer": "1"}\n')
    given = [f"run.folder={folder}", f"data.train={problems}"]
    assert train(str(CONFIGS / "qwen3_1p7b" / "grpo.yaml"), given, resume=False) == folder
    assert seen == [str(folder)]
    with locked(folder):  # and lets it go
        pass


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(RunFolderError, match="in use"), locked(tmp_path):
        pass
    with locked(tmp_path):
        assert (tmp_path / "run.lock").read_text() == str(os.getpid())


def failing(number: int) -> Callable[..., None]:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return flock


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lustre mounted without `flock` answers so; a run there is no user's mistake."""
    for number in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
        monkeypatch.setattr(fcntl, "flock", failing(number))
        caplog.clear()
        with caplog.at_level(logging.WARNING), locked(tmp_path):
            pass
        assert "a second run into the folder would not be noticed" in caplog.text
    monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output"), locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError, match=r"cannot write .*; choose another folder"), locked(tmp_path / "file"):
        pass
