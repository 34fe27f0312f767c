"""One run at a time in a run folder or study; the lock goes with the process, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from nemo_uecr.errors import RunFolderError

log = logging.getLogger(__name__)

FILE = "run.lock"
#: What a file system answers that has no locks, as Lustre without its option `flock`.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run folder, made where it is not there; a second run into it is refused.

    A folder that was made here and has nothing but the lock at the end, as after a refusal, is taken away again. On a
    file system without locks the run goes on with a warning.

    Raises:
        RunFolderError: If another process holds it, or it cannot be made or written into.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"cannot write {error.filename or folder}: {error.strerror}; choose another folder"
        ) from error
    with lock:
        if _take(lock, folder):
            _sign(lock, folder)
        try:
            yield
        finally:
            if made:
                _remove_empty(folder)


def _sign(lock: TextIO, folder: Path) -> None:
    """Write our process number into the lock; past the buffer, which would be written again when it closes."""
    lock.truncate(0)
    try:
        os.write(lock.fileno(), str(os.getpid()).encode())
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / FILE}: {error.strerror}; choose another folder") from error


def _remove_empty(folder: Path) -> None:
    """Take away a folder that holds the lock alone."""
    with contextlib.suppress(OSError):  # what is left of it does no harm
        if [path.name for path in folder.iterdir()] == [FILE]:
            (folder / FILE).unlink()
            folder.rmdir()


def _take(lock: TextIO, folder: Path) -> bool:
    """Whether the lock is ours; False on a file system without locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        raise RunFolderError(
            f"{folder} is in use by process {lock.read().strip() or '?'}; wait for it or choose another folder"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning("%s: its file system has no locks; a second run into the folder would not be noticed", folder)
        return False
    return True
