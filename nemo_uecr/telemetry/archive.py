"""A run folder as one archive, and back."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from pathlib import Path

from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import LOCK, new_folder, replaced_file

GIB = 1 << 30
CHUNK = 1 << 20


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


def unpack(archive: Path, folder: Path, *, max_gib: int) -> int:
    """Unpack an archive into a new folder that appears only when every file is there and the checksum holds.

    The archive may come from anybody: nothing is written outside the folder, and no links are made. All files together
    may take ``max_gib`` GiB. Returns how many there are.
    """
    if folder.exists():
        raise RunFolderError(f"{folder} exists; expected a new folder to unpack into")
    room, count = max_gib * GIB, 0
    try:
        with (
            gzip.open(archive) as packed,
            tarfile.open(fileobj=packed, mode="r|") as members,
            new_folder(folder) as aside,
        ):
            for member in members:
                room -= member.size
                if not member.isreg():
                    raise DataError(f"{archive}: member {member.name!r} is not a regular file; nothing is unpacked")
                if room < 0:
                    raise DataError(
                        f"{archive}: its files take more than {max_gib} GiB, the limit; nothing is unpacked. If you "
                        "trust the archive and there is room, give a higher --max-gib"
                    )
                # The standard library's own rules: no absolute names, and none that climbs out.
                members.extract(member, aside, filter="data")
                count += 1
            while packed.read(CHUNK):
                pass  # gzip compares the checksum at the very end
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{archive}: not a readable archive ({error}); expected the file that `pack` wrote") from error
    return count
