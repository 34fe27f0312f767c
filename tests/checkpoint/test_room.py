"""Folders that cannot take what is written: the libraries' own errors, met for real, become one line."""

from __future__ import annotations

import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nemo_uecr.checkpoint.room import unwritable, writing
from nemo_uecr.errors import CheckpointError

ROOM = 1000


@contextmanager
def little_room() -> Iterator[None]:
    """No file may have more than 1000 bytes, as on a disk that fills up while it is written.

    Around the write alone: pytest's own report may be a file too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
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
