"""The file beside a place, in which what will stand there is written first: one writer at a time, and never a link."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO

from nemo_uecr.data.lock_file import NO_LOCKS

__all__ = ["name_aside", "open_aside", "same_file"]


def name_aside(path: Path) -> Path:
    """The name beside a place; a kill leaves it behind, and the next writer takes it over."""
    return path.with_name(f".{path.name}.tmp")


def open_aside(path: Path) -> BinaryIO:
    """Open the file beside a place, empty; whoever writes the same place waits until this one is closed.

    Raises:
        OSError: If it cannot be opened, or a link, a pipe or a second name of a file stands there.
    """
    name = name_aside(path)
    # Without O_TRUNC: what stands there may be another writer's until the lock is ours.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(name, flags, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                error.filename = str(path)  # what the user knows of; a link is to be looked at
            raise
        try:
            _wait_for(descriptor)
            if not same_file(name, descriptor):  # its last writer has put it in place since we opened it
                os.close(descriptor)
                continue
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise OSError(errno.EINVAL, "it is no file of its own", str(name))
            os.ftruncate(descriptor, 0)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "wb")


def same_file(path: Path, descriptor: int) -> bool:
    """Whether a name still leads to an open file."""
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _wait_for(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:  # without locks two writers of one place are not told apart
            raise
