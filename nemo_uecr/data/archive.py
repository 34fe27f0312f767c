"""A run folder as one archive, and back; nothing in an archive can be written outside the folder it is unpacked to."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nemo_uecr.data.atomic import check_replaceable, new_folder, sync_folder
from nemo_uecr.data.digest import file_sha256
from nemo_uecr.data.json_text import decoded
from nemo_uecr.errors import DataError, RunFolderError

FORMAT = "nemo_uecr.archive/1"
#: First member of the archive: format, and sha256 of every other member.
INDEX = "archive.json"
#: What is not the run's: locks, files aside, what can be made again.
LEFT_OUT = ("run.lock",)
#: An index longer than this is none.
MOST_INDEX_BYTES = 1 << 26
CHUNK = 1 << 20


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
        RunFolderError: If the archive exists, or a file changes while it is packed.
        DataError: If the archive cannot be written.
    """
    if out.exists():
        raise RunFolderError(f"{out} exists; expected a new archive. Remove it, or choose another name")
    names = [name for name in _names(folder) if checkpoints or not name.startswith("checkpoints/")]
    digests = {name: file_sha256(folder / name) for name in names}
    aside = out.with_name(f".{out.name}.tmp")
    try:
        check_replaceable(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as raw:
            with (
                gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                content = json.dumps({"format": FORMAT, "files": digests}, indent=1).encode()
                _add(archive, INDEX, io.BytesIO(content), len(content))
                for name in names:
                    _add_file(archive, folder, name, digests[name])
            raw.flush()
            os.fsync(raw.fileno())
        aside.replace(out)
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(out.parent)
    return len(names)


def unpack(archive: Path, folder: Path) -> int:
    """Unpack an archive into a new folder that appears only when every file is there and has its hash.

    Returns:
        The number of files unpacked.

    Raises:
        DataError: If the archive is damaged, or holds anything but plain files below one folder.
        RunFolderError: If the folder exists.
    """
    if folder.exists():
        raise RunFolderError(f"{folder} exists; expected a new folder to unpack into")
    try:
        with _opened(archive) as members, new_folder(folder) as aside:
            return _unpack_into(aside, members, archive)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{archive}: not a readable archive ({error}); expected the file that `pack` wrote") from error
    except OSError as error:
        raise DataError(f"cannot unpack {archive} into {folder}: {error.strerror or error}") from error


def safe_name(name: str, archive: Path) -> PurePosixPath:
    """A member's name, when it stays inside.

    Raises:
        DataError: If it is absolute, climbs, or says what other systems would read as a path of their own.
    """
    parts = name.split("/")
    odd = any(part in ("", ".", "..") for part in parts) or any(sign in name for sign in ("\\", "\0", ":"))
    if odd or PurePosixPath(name).is_absolute():
        raise DataError(f"{archive}: member {name!r} leads outside the folder; the archive is refused as a whole")
    return PurePosixPath(name)


def _names(folder: Path) -> list[str]:
    """The files of a run; links (W&B makes some, to its own logs) are neither followed nor packed."""
    names = []
    for place, _, files in os.walk(folder):
        for path in (Path(place) / name for name in files):
            relative = path.relative_to(folder)
            hidden = any(part.startswith(".") for part in relative.parts)
            if path.is_file() and not (path.is_symlink() or hidden or relative.as_posix() in LEFT_OUT):
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


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    if not archive.is_file():
        raise DataError(f"{archive}: no such file; expected an archive that `nemo-uecr pack` wrote")
    with tarfile.open(archive, mode="r:gz") as members:
        yield members


def _unpack_into(aside: Path, members: tarfile.TarFile, archive: Path) -> int:
    expected: dict[str, str] | None = None
    seen: set[str] = set()
    for member in members:
        name = safe_name(member.name, archive)
        if not member.isreg():
            raise DataError(f"{archive}: member {member.name!r} is no plain file; the archive is refused as a whole")
        content = members.extractfile(member)
        if content is None:
            raise DataError(f"{archive}: member {member.name!r} has no content; the archive is damaged")
        if expected is None:
            expected = _index(member, content, archive)
            continue
        if str(name) not in expected or str(name) in seen:
            raise DataError(f"{archive}: member {member.name!r} is not in the index once; the archive is damaged")
        seen.add(str(name))
        if _write(aside.joinpath(*name.parts), content) != expected[str(name)]:
            raise DataError(f"{archive}: member {member.name!r} has another content than the index says; damaged")
    missing = sorted((expected or {}).keys() - seen)
    if expected is None or missing:
        raise DataError(f"{archive}: {missing[0] if missing else INDEX} is missing; the archive is damaged")
    return len(seen)


def _index(member: tarfile.TarInfo, content: IO[bytes], archive: Path) -> dict[str, str]:
    if member.name != INDEX or member.size > MOST_INDEX_BYTES:
        raise DataError(f"{archive}: does not begin with {INDEX}; expected an archive that `nemo-uecr pack` wrote")
    try:
        index: dict[str, Any] = decoded(content.read())
        if index["format"] != FORMAT:
            raise DataError(f"{archive}: format {index['format']!r}; expected {FORMAT!r}")
        return {str(name): str(digest) for name, digest in index["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{archive}: {INDEX} cannot be read ({error}); the archive is damaged") from error


def _write(path: Path, content: IO[bytes]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        while block := content.read(CHUNK):
            file.write(block)
            digest.update(block)
    return digest.hexdigest()
