"""Two runs in one folder: the second is refused in one line, and the first goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.files import locked
from tests.local.tiny import assets, train_words
from tests.reliability.commands import refused


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    local = train_words(assets(), folder)
    with locked(folder):
        for words in (local, [*local, "--resume"]):
            assert refused(capsys, *words).startswith(f"{folder} is in use by another process")
        assert [path.name for path in folder.iterdir()] == ["run.lock"]
