"""A run folder as one archive, and back."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from pathlib import Path
from typing import IO

from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import LOCK, file_sha256, new_folder, replaced_file

FORMAT = "nemo_uecr.archive/1"
#: First member of the archive: format, and sha256 of every other member.
INDEX = "archive.json"
GIB = 1 << 30
CHUNK = 1 << 16


def pack(folder: Path, out: Path, *, checkpoints: bool) -> int:
    """Write every file of a run folder into one gzipped tar file, complete or not at all.

    Names and modes are fixed and times are left out, so that equal folders give equal archives. Links (W&B makes
    some, to its own logs), hidden files and the lock are left out.

    Args:
        folder: the run folder.
        out: the archive.
        checkpoints: whether ``checkpoints/`` goes along.

    Returns:
        The number of files packed.

    Raises:
        RunFolderError: If the archive exists or lies in the folder, or a file changes while it is packed.
        DataError: If the archive cannot be written.
    """
    if out.exists():
        raise RunFolderError(f"{out} exists; expected a new archive. Remove it, or choose another name")
    if out.resolve().is_relative_to(folder.resolve()):
        raise RunFolderError(f"{out} is in the folder that it would hold; choose a place outside {folder}")
    names = [name for name in _names(folder) if checkpoints or not name.startswith("checkpoints/")]
    digests = {name: file_sha256(folder / name) for name in names}
    index = json.dumps({"format": FORMAT, "files": digests}, indent=1).encode()
    try:
        with (
            replaced_file(out) as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            _add(archive, INDEX, io.BytesIO(index), len(index))
            for name in names:
                path = folder / name
                with path.open("rb") as file:
                    _add(archive, name, file, path.stat().st_size)
                if file_sha256(path) != digests[name]:
                    raise RunFolderError(f"{path} changed while it was packed; wait until the run has ended")
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from error
    return len(names)


def _names(folder: Path) -> list[str]:
    names = []
    for place, _, files in os.walk(folder):
        for path in (Path(place) / name for name in files):
            relative = path.relative_to(folder)
            hidden = any(part.startswith(".") for part in relative.parts)
            if path.is_file() and not (path.is_symlink() or hidden or relative.as_posix() == LOCK):
                names.append(relative.as_posix())
    return sorted(names)


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    archive.addfile(member, content)


def unpack(archive: Path, folder: Path, *, max_gib: int) -> int:
    """Unpack an archive into a new folder that appears only when every file is there and has its hash.

    The archive may come from anybody: nothing is written outside the folder, no links are made, and what is not in
    the index is refused.

    Args:
        archive: the file that ``pack`` wrote.
        folder: the folder to make.
        max_gib: the most that all files together may take, GiB.

    Returns:
        The number of files unpacked.

    Raises:
        DataError: If the archive is damaged, holds anything but plain files below one folder, or more of them than
            allowed.
        RunFolderError: If the folder exists.
    """
    if not archive.is_file():
        raise DataError(f"{archive}: no such file; expected an archive that `nemo-uecr pack` wrote")
    if folder.exists():
        raise RunFolderError(f"{folder} exists; expected a new folder to unpack into")
    try:
        with tarfile.open(archive, mode="r:gz") as members, new_folder(folder) as aside:
            return _unpack_into(aside, members, archive, max_gib)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{archive}: not a readable archive ({error}); expected the file that `pack` wrote") from error
    except OSError as error:
        raise DataError(f"cannot unpack {archive} into {folder}: {error.strerror or error}") from error


def _unpack_into(aside: Path, members: tarfile.TarFile, archive: Path, max_gib: int) -> int:
    expected: dict[str, str] | None = None
    room = max_gib * GIB
    seen: set[str] = set()
    for member in members:
        # The standard library's own rules: no absolute names, none that climbs, no links or devices that lead outside.
        member = tarfile.data_filter(member, str(aside))
        content = members.extractfile(member) if member.isreg() else None
        room -= member.size
        if content is None:
            raise DataError(f"{archive}: member {member.name!r} is no plain file; the archive is refused as a whole")
        if room < 0:
            raise DataError(
                f"{archive}: its files take more than {max_gib} GiB, the limit; nothing is unpacked. If you trust the "
                "archive and there is room, give a higher --max-gib"
            )
        if expected is None:
            expected = _index(member, content, archive)
        elif _write(aside / member.name, content) != expected.get(member.name):
            raise DataError(f"{archive}: member {member.name!r} is not the one of the index; the archive is damaged")
        else:
            seen.add(member.name)
    missing = {INDEX} if expected is None else expected.keys() - seen
    if missing:
        raise DataError(f"{archive}: {min(missing)!r} is missing; the archive is damaged")
    return len(seen)


def _index(member: tarfile.TarInfo, content: IO[bytes], archive: Path) -> dict[str, str]:
    if member.name != INDEX:
        raise DataError(f"{archive}: does not begin with {INDEX}; expected an archive that `nemo-uecr pack` wrote")
    index = json.loads(content.read())
    if index["format"] != FORMAT:
        raise DataError(f"{archive}: format {index['format']!r}; expected {FORMAT!r}")
    return dict(index["files"])


def _write(path: Path, content: IO[bytes]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        while block := content.read(CHUNK):
            file.write(block)
            digest.update(block)
    return digest.hexdigest()
