"""The digest of a file, as manifests, checkpoints and records of a run state it."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

__all__ = ["file_sha256"]


def file_sha256(path: Path) -> str:
    """Hex digest of a file, read in pieces.

    Raises:
        OSError: If it cannot be read, or is no regular file: a pipe or a device has no end.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
