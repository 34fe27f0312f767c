"""Folders that cannot take what is written: the libraries' own errors, met for real, become one line."""

from __future__ import annotations

import errno
import os
import resource
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nemo_uecr.checkpoint.hf_writer import names_folder
from nemo_uecr.checkpoint.room import unwritable, writing
from nemo_uecr.errors import CheckpointError

ROOM = 1000


@contextmanager
def little_room(room: int = ROOM) -> Iterator[None]:
    """No file may have more bytes than that, as on a disk that fills up while it is written.

    Around the write alone: pytest's own report may be a file too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def with_safetensors(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(ROOM)}, folder / "model.safetensors")


def with_distributed_checkpoint(folder: Path) -> None:
    from torch.distributed.checkpoint import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is distributed here
        save({"a": torch.zeros(ROOM)}, checkpoint_id=folder / "iter_0000000", no_dist=True)


def with_python(folder: Path) -> None:
    (folder / "file").write_bytes(bytes(2 * ROOM))


@pytest.mark.parametrize("write", [with_safetensors, with_distributed_checkpoint, with_python])
def test_each_library_s_error_is_one_line(write: Callable[[Path], None], tmp_path: Path) -> None:
    said = f"{tmp_path}: cannot be written .* GB are free there"
    with pytest.raises(CheckpointError, match=said) as error, little_room(), writing(tmp_path):
        write(tmp_path)
    assert "\n" not in str(error.value)


def test_the_nearest_folder_that_is_there_is_named(tmp_path: Path) -> None:
    said = str(unwritable(tmp_path / "a" / "b", OSError(28, os.strerror(28))))
    assert said.startswith(f"{tmp_path}: cannot be written (No space left on device); ")


def test_a_full_folder_of_temporary_files_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a write, which does not say where it was, and for what a library makes there by itself."""
    (tmp_path / "config.json").write_bytes(bytes(2 * ROOM))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    with pytest.raises(CheckpointError) as error, little_room(), names_folder(tmp_path / "config.json", {}):
        pass
    assert str(error.value).startswith(f"{tmp_path / 'tmp'}: cannot be written (File too large); ")
    assert "GB are free there. Make room, or set TMPDIR to another folder; " in str(error.value)
    assert not [*(tmp_path / "tmp").iterdir()]
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "tmp" / "torchinductor"))
    assert str(unwritable(tmp_path / "out", full)).startswith(f"{tmp_path / 'tmp'}: cannot be written (No space left")
    inside = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "tmp" / "out" / "file"))
    assert "choose another --to" in str(unwritable(tmp_path / "tmp" / "out", inside))


def test_where_nothing_takes_temporary_files_all_places_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python tries each with a few bytes."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "config.json").touch()
    said = f"No usable temporary directory found in .*{tmp_path}.*: none can be written; make room in one of them, or"
    with pytest.raises(CheckpointError, match=said), little_room(0), names_folder(tmp_path / "config.json", {}):
        pass
