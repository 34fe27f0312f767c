"""`--json FILE`: refused before anything is computed where it cannot be written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nemo_uecr.errors import ConfigError

__all__ = ["refuse_unwritable", "write_json"]

LONGEST_NAME = 250
"""Bytes: a file is written under a name a little longer first."""


def refuse_unwritable(path: Path) -> None:
    """Refuse a folder, a device, and a file in a folder that is not there or cannot be written.

    Raises:
        ConfigError: it is one of these.
    """
    if len(path.name.encode()) > LONGEST_NAME:
        raise ConfigError(f"--json: {path.name[:40]}... has more than {LONGEST_NAME} bytes; give it a shorter name")
    folder = path.absolute().parent
    if path.is_dir():
        raise ConfigError(f"--json: {path} is a folder; expected the name of a file to write")
    if path.exists() and not path.is_file():
        raise ConfigError(f"--json: {path} is no regular file; expected the name of a file to write")
    if not folder.is_dir():
        raise ConfigError(f"--json: no folder {folder}; make it first")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--json: {folder} cannot be written; name another file")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write it whole.

    Raises:
        ConfigError: it cannot be written.
    """
    from nemo_uecr.data.atomic import replace_file

    try:
        replace_file(path, (json.dumps(content, indent=1) + os.linesep).encode())
    except OSError as error:
        raise ConfigError(f"--json: cannot write {path} ({error.strerror}); name another file") from error
