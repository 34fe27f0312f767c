"""Two runs in one folder: the second is refused in one line, and the first goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import locked
from tests.config.test_nemo import CONFIGS, GRPO
from tests.holding import held
from tests.reliability.commands import refused


def test_a_nemo_rl_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    problems = tmp_path / "train.jsonl"
    problems.write_text('{"id": "a", "question": "1", "answer": "1"}\n')
    words = ("train", CONFIGS / "uecr_qwen3_1p7b.yaml", *GRPO, f"run.folder={folder}", f"data.train={problems}")
    with held(folder):
        for resume in ((), ("--resume",)):
            assert refused(capsys, *words, *resume).startswith(f"{folder} is in use by another process")
        assert [path.name for path in folder.iterdir()] == ["run.lock"]


def test_a_nemo_rl_run_holds_its_folder_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_uecr.cli.train import train_nemo_rl as train
    from nemo_uecr.nemo_adapter import launcher

    folder = tmp_path / "run"
    seen = []

    def launch(config: Any, **rest: object) -> Path:
        with pytest.raises(RunFolderError, match="in use by another process"), locked(folder):
            pass
        seen.append(config.run.folder)
        return folder

    monkeypatch.setattr(launcher, "train", launch)
    problems = tmp_path / "train.jsonl"
    problems.write_text('{"id": "a", "question": "1", "answer": "1"}\n')
    given = [*GRPO, f"run.folder={folder}", f"data.train={problems}"]
    assert train(str(CONFIGS / "uecr_qwen3_1p7b.yaml"), given, resume=False) == folder
    assert seen == [str(folder)]
    with locked(folder):  # and lets it go
        pass
