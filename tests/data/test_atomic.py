"""Files are old or new, never a part."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from nemo_uecr.data.atomic import replace_file


def test_replace_file_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_failed_write_keeps_the_old_content_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as error:
            replace_file(path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
