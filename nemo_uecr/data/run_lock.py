"""One run at a time in a run folder or study; the lock goes with the process, however it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from nemo_uecr.data.lock_file import open_lock, take_lock
from nemo_uecr.errors import RunFolderError

FILE = "run.lock"
#: Characters of a process number, read of a file that anybody may have written.
LONGEST = 20


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
        lock = open_lock(folder / FILE)
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
        return take_lock(lock, folder)
    except BlockingIOError:
        lock.seek(0)
        said = lock.read(LONGEST).strip()
        holder = said if said.isdecimal() else "?"
        raise RunFolderError(f"{folder} is in use by process {holder}; wait for it or choose another folder") from None
