"""Files to lock: opened without following a link, waiting for a pipe, or taking away what stands in them."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from pathlib import Path
from typing import TextIO

log = logging.getLogger(__name__)

#: What a file system answers that has no locks, as Lustre without its option `flock`.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def open_lock(path: Path) -> TextIO:
    """Open a file to lock, made where it is not there; its content stays, for it may be another's.

    Raises:
        OSError: naming the path, if it is a link, a pipe or anything else than a file of its own, or cannot be opened.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link and no lock of ours", str(path))
    # A link that comes in between is refused by the flag; opening a pipe would wait for its other end.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it exists and is no regular file", str(path))
    return os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace")  # another's bytes may be no text


def is_held(path: Path) -> bool:
    """Whether another process holds a lock; nothing is made or written, and a link or a pipe is no lock of ours.

    Raises:
        OSError: naming the path, if it cannot be looked at.
    """
    if path.is_symlink() or not path.is_file():
        return False
    # A link or a pipe that comes in between is refused by the flags, or not waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            error.filename = str(path)
            raise
    finally:
        os.close(descriptor)
    return False


def take_lock(lock: TextIO, path: Path) -> bool:
    """Lock an open file; False, with a warning, on a file system without locks.

    Args:
        lock: from `open_lock`.
        path: what the lock stands for, for the warning.

    Raises:
        BlockingIOError: If another one holds it.
        OSError: naming the path, if it cannot be locked for another reason.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in NO_LOCKS:
            error.filename = str(path)  # a failed lock does not know it
            raise
        log.warning("%s: its file system has no locks; a second run into the folder would not be noticed", path)
        return False
    return True
