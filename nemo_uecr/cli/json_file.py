"""`--json FILE` and the like: refused before anything is computed where it cannot be written."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from nemo_uecr.errors import ConfigError

__all__ = ["refuse_input", "refuse_unwritable", "write_json"]

LONGEST_NAME = 250
"""Bytes: a file is written under a name a little longer first."""


def refuse_unwritable(path: Path, option: str) -> None:
    """Refuse a folder, a device, and a file in a folder that is not there or cannot be written.

    Args:
        path: file to write.
        option: word of the command line that names it.

    Raises:
        ConfigError: it is one of these.
    """
    if "\0" in str(path):
        raise ConfigError(f"{option}: got a path with a NUL character; expected the name of a file to write")
    if len(path.name.encode()) > LONGEST_NAME:
        raise ConfigError(f"{option}: {path.name[:40]}... has more than {LONGEST_NAME} bytes; give it a shorter name")
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"{option}: {path} is a folder; expected the name of a file to write")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{option}: {path} is no regular file; expected the name of a file to write")
    if not folder.is_dir():
        raise ConfigError(f"{option}: no folder {folder}; make it first")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"{option}: {folder} cannot be written ({error.strerror}); name another file") from error


def refuse_input(path: Path, option: str, batch: Path) -> None:
    """Refuse to write the batch that is read.

    Raises:
        ConfigError: both are one file.
    """
    if path.exists() and batch.exists() and path.samefile(batch):
        raise ConfigError(f"{option}: {path} is the batch itself, which would be lost; name another file")


def write_json(path: Path, content: object) -> None:
    """Write it whole.

    Raises:
        ConfigError: it cannot be written.
    """
    from nemo_uecr.files import replace_file

    try:
        replace_file(path, (json.dumps(content, indent=1) + os.linesep).encode())
    except OSError as error:
        raise ConfigError(f"--json: cannot write {path} ({error.strerror}); name another file") from error
