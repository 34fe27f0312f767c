"""An archive of a run as a folder: nothing in it is written outside that folder, or beyond a limit."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nemo_uecr.data.archive import FORMAT, INDEX, MOST_FILES, MOST_INDEX_BYTES, is_portable
from nemo_uecr.data.json_text import decoded
from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import new_folder

CHUNK = 1 << 16
GIB = 1 << 30
#: What the tar reader asks for at once where all is well: a block, a chunk, or the whole of a long name.
MOST_READ_BYTES = CHUNK


def unpack(archive: Path, folder: Path, *, max_gib: int) -> int:
    """Unpack an archive into a new folder that appears only when every file is there and has its hash.

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
    if folder.exists() or folder.is_symlink():  # behind a link that leads nowhere a folder would appear elsewhere
        raise RunFolderError(f"{folder} exists; expected a new folder to unpack into")
    try:
        with _opened(archive) as (content, members), new_folder(folder) as aside:
            count = _unpack_into(aside, members, archive, max_gib)
            content.check_end()
            return count
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, RecursionError) as error:
        raise DataError(f"{archive}: not a readable archive ({error}); expected the file that `pack` wrote") from error
    except OSError as error:
        raise DataError(f"cannot unpack {archive} into {folder}: {error.strerror or error}") from error


def safe_name(name: str, archive: Path) -> PurePosixPath:
    """A member's name, when it stays inside.

    Raises:
        DataError: If it is absolute, climbs, or says what other systems would read as a path of their own.
    """
    if not is_portable(name):
        raise DataError(f"{archive}: member {name!r} leads outside the folder; the archive is refused as a whole")
    return PurePosixPath(name)


class _Measured(gzip.GzipFile):
    """What is packed, in pieces: the tar reader takes names and headers of any declared length in one piece."""

    last = b""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= MOST_READ_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes, at most {MOST_READ_BYTES} are read")
        try:
            self.last = super().read(size)
        except gzip.BadGzipFile as error:  # an OSError, to which the folder being written would add its own name
            raise tarfile.ReadError(str(error)) from error
        return self.last

    def check_end(self) -> None:
        """Read what follows the last member: nothing but zeros may, and gzip compares its checksum at the end."""
        left, block = 2 * CHUNK, self.last
        while block:
            left -= len(block)
            if any(block) or left < 0:
                raise tarfile.ReadError("something follows its last file")
            block = self.read(CHUNK)


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[_Measured, tarfile.TarFile]]:
    if not archive.is_file():
        raise DataError(f"{archive}: no such file; expected an archive that `nemo-uecr pack` wrote")
    with _Measured(archive) as content, tarfile.open(fileobj=content, mode="r:") as members:
        yield content, members


def _each(members: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Members one by one. The tar reader keeps them and their headers, which may be large, so it is made to forget."""
    while (member := _next(members)) is not None:
        members.members.clear()  # type: ignore[attr-defined]  # the stubs leave it out
        members.pax_headers = {}
        yield member


def _next(members: tarfile.TarFile) -> tarfile.TarInfo | None:
    try:
        return members.next()
    except ValueError as error:  # of a number in an extended header that is none
        raise tarfile.ReadError(f"a header that cannot be read: {error}") from error


def _unpack_into(aside: Path, members: tarfile.TarFile, archive: Path, max_gib: int) -> int:
    expected: dict[str, str] | None = None
    seen: set[str] = set()
    room = max_gib * GIB
    for member in _each(members):
        name = safe_name(member.name, archive)
        content = _content(member, members, archive)
        if expected is None:
            expected = _index(member, content, archive)
            continue
        if str(name) not in expected or str(name) in seen:
            raise DataError(f"{archive}: member {member.name!r} is not in the index once; the archive is damaged")
        seen.add(str(name))
        room -= member.size
        if room < 0:
            raise DataError(
                f"{archive}: its files take more than {max_gib} GiB, the limit; nothing is unpacked. If the archive is "
                "from somebody you trust and there is room, give a higher --max-gib"
            )
        if _write(aside.joinpath(*name.parts), content) != expected[str(name)]:
            raise DataError(f"{archive}: member {member.name!r} has another content than the index says; damaged")
    missing = sorted((expected or {}).keys() - seen)
    if expected is None or missing:
        raise DataError(f"{archive}: {(missing[0] if missing else INDEX)!r} is missing; the archive is damaged")
    return len(seen)


def _content(member: tarfile.TarInfo, members: tarfile.TarFile, archive: Path) -> IO[bytes]:
    """Of a plain file. A sparse one declares a size that the archive does not hold."""
    if not member.isreg() or member.issparse() or member.size < 0:
        raise DataError(f"{archive}: member {member.name!r} is no plain file; the archive is refused as a whole")
    content = members.extractfile(member)
    if content is None:
        raise DataError(f"{archive}: member {member.name!r} has no content; the archive is damaged")
    return content


def _index(member: tarfile.TarInfo, content: IO[bytes], archive: Path) -> dict[str, str]:
    if member.name != INDEX:
        raise DataError(f"{archive}: does not begin with {INDEX}; expected an archive that `nemo-uecr pack` wrote")
    if member.size > MOST_INDEX_BYTES:
        raise DataError(f"{archive}: {INDEX} has {member.size} bytes; expected at most {MOST_INDEX_BYTES}")
    try:
        index: dict[str, Any] = decoded(b"".join(iter(lambda: content.read(CHUNK), b"")))
        if index["format"] != FORMAT:
            raise DataError(f"{archive}: format {index['format']!r}; expected {FORMAT!r}")
        files = {str(name): str(digest) for name, digest in index["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{archive}: {INDEX} cannot be read ({error}); the archive is damaged") from error
    if len(files) > MOST_FILES:
        raise DataError(f"{archive}: has {len(files)} files; expected at most {MOST_FILES}; nothing is unpacked")
    return files


def _write(path: Path, content: IO[bytes]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with path.open("xb") as file:
        while block := content.read(CHUNK):
            file.write(block)
            digest.update(block)
    return digest.hexdigest()
