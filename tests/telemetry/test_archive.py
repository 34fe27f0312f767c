"""Archives of run folders: what they hold, and that `tar` gives it back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nemo_uecr.errors import RunFolderError
from nemo_uecr.telemetry.archive import pack

FILES = {"config.yaml": b"a: 1\n", "batches/step-1.bin": bytes(range(256)) * 99, "checkpoints/step-1/model": b"w"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    for name, content in {**FILES, "run.lock": b"1", ".metrics.tmp": b"half", ".aside/file": b"half"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unpack(archive: Path, folder: Path) -> None:
    folder.mkdir()
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(folder)], check=True)


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    (folder / "latest").symlink_to("batches", target_is_directory=True)  # W&B makes some
    assert pack(folder, tmp_path / "a.tar.gz", checkpoints=True) == 3
    unpack(tmp_path / "a.tar.gz", tmp_path / "new")
    assert contents(tmp_path / "new") == FILES
    assert pack(folder, tmp_path / "b.tar.gz", checkpoints=False) == 2
    unpack(tmp_path / "b.tar.gz", tmp_path / "light")
    assert sorted(contents(tmp_path / "light")) == ["batches/step-1.bin", "config.yaml"]
    (folder / "config.yaml").touch()
    (folder / "config.yaml").chmod(0o600)
    pack(folder, tmp_path / "c.tar.gz", checkpoints=True)  # equal folders give equal archives
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "c.tar.gz").read_bytes()


def test_nothing_is_written_over(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    for out in ("a.tar.gz", "run/b.tar.gz"):
        with pytest.raises(RunFolderError):
            pack(folder, tmp_path / out, checkpoints=True)
