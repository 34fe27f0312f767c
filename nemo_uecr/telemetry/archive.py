"""A run folder as one archive."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

from nemo_uecr.errors import RunFolderError
from nemo_uecr.files import LOCK, replaced_file


def pack(folder: Path, out: Path, *, checkpoints: bool) -> int:
    """Write every file of a run folder into one gzipped tar file, complete or not at all; returns how many.

    Names and modes are fixed and times are left out, so that equal folders give equal archives. Links (W&B makes
    some, to its own logs), hidden files and the lock are left out.
    """
    if out.exists():
        raise RunFolderError(f"{out} exists; expected a new archive. Remove it, or choose another name")
    if out.resolve().is_relative_to(folder.resolve()):
        raise RunFolderError(f"{out} is in the folder that it would hold; choose a place outside {folder}")
    names = [name for name in _names(folder) if checkpoints or not name.startswith("checkpoints/")]
    with (
        replaced_file(out) as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            member = tarfile.TarInfo(name)
            with (folder / name).open("rb") as file:
                member.size, member.mode = os.fstat(file.fileno()).st_size, 0o644
                archive.addfile(member, file)
    return len(names)


def _names(folder: Path) -> list[str]:
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    shown = [file.as_posix() for file in files if not any(part.startswith(".") for part in file.parts)]
    return sorted(name for name in shown if name != LOCK)
