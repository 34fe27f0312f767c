"""The demo's folder and configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.cli.train import demo_config_path, with_free_folder


def test_a_new_folder_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert with_free_folder(["run.seed=1"]) == ["run.folder=runs/demo", "run.seed=1"]
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    assert with_free_folder([]) == ["run.folder=runs/demo-2"]
    (tmp_path / "runs" / "demo-2").mkdir()
    assert with_free_folder([]) == ["run.folder=runs/demo-3"]


@pytest.mark.parametrize("text", ["run.folder=mine", "+run.folder=mine", "++run.folder=mine"])
def test_a_named_folder_stays(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert with_free_folder([text]) == [text]


def test_the_shipped_configuration_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(demo_config_path()).is_file()
