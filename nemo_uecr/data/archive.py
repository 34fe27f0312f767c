"""A run folder as one archive; ``unpacking`` reads it back."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import IO

from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import LOCK, file_sha256, replaced_file

FORMAT = "nemo_uecr.archive/1"
#: First member of the archive: format, and sha256 of every other member.
INDEX = "archive.json"
#: Of an archive, so that its index is read in little memory: files, and bytes of the index.
MOST_FILES, MOST_INDEX_BYTES = 100_000, 1 << 25


def pack(folder: Path, out: Path, *, checkpoints: bool) -> int:
    """Write every file of a run folder into one gzipped tar file, complete or not at all.

    Names and modes are fixed and times are left out, so that equal folders give equal archives. Links are left out.

    Args:
        folder: the run folder.
        out: the archive.
        checkpoints: whether ``checkpoints/`` goes along.

    Returns:
        The number of files packed.

    Raises:
        RunFolderError: If the archive exists, there are more files than one archive takes, or one of them has a name
            that is none elsewhere, or changes while it is packed.
        DataError: If the archive cannot be written.
    """
    _refuse_existing(out)
    if out.resolve().is_relative_to(folder.resolve()):
        raise RunFolderError(f"{out} is in the folder that it would hold; choose a place outside {folder}")
    names = [name for name in _names(folder) if checkpoints or not name.startswith("checkpoints/")]
    odd = next((name for name in names if not is_portable(name)), None)
    if odd is not None:
        raise RunFolderError(
            f"{folder} has a file {odd!r}; expected names without ':' and '\\', which other systems take for a path of "
            "their own and `unpack` refuses. Rename it, or copy the folder as it is"
        )
    digests = {name: file_sha256(folder / name) for name in names}
    index = json.dumps({"format": FORMAT, "files": digests}, indent=1).encode()
    if len(names) > MOST_FILES or len(index) > MOST_INDEX_BYTES:
        raise RunFolderError(
            f"{folder} has {len(names)} files, whose index takes {len(index)} bytes; expected at most {MOST_FILES} "
            f"files and {MOST_INDEX_BYTES} bytes: pack a part of it, or copy the folder as it is"
        )
    try:
        with (
            replaced_file(out) as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            _add(archive, INDEX, io.BytesIO(index), len(index))
            for name in names:
                _add_file(archive, folder, name, digests[name])
            _refuse_existing(out)  # once more: another command may have packed there meanwhile
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from error
    return len(names)


def _refuse_existing(out: Path) -> None:
    if os.path.lexists(out):  # also a link that leads nowhere, which would be lost
        raise RunFolderError(f"{out} exists; expected a new archive. Remove it, or choose another name")


def is_portable(name: str) -> bool:
    """Whether a member's name is a path below the folder, on whatever system it is unpacked."""
    inside = all(part not in ("", ".", "..") for part in name.split("/"))
    return inside and not any(sign in name for sign in ("\\", "\0", ":"))


def _names(folder: Path) -> list[str]:
    """The files of a run; links (W&B makes some, to its own logs) are neither followed nor packed."""
    names = []
    for place, _, files in os.walk(folder):
        for path in (Path(place) / name for name in files):
            relative = path.relative_to(folder)
            hidden = any(part.startswith(".") for part in relative.parts)
            if path.is_file() and not (path.is_symlink() or hidden or relative.as_posix() == LOCK):
                names.append(relative.as_posix())
    return sorted(names)


def _add_file(archive: tarfile.TarFile, folder: Path, name: str, digest: str) -> None:
    path = folder / name
    with path.open("rb") as file:
        _add(archive, name, file, path.stat().st_size)
    if file_sha256(path) != digest:
        raise RunFolderError(f"{path} changed while it was packed; wait until the run has ended")


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.addfile(member, content)
