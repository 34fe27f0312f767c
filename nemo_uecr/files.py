"""Atomic writes of files and folders, whole lines, and a lock for one run per folder.

A failed write keeps the old content and raises an `OSError` with the path, which the command line reports in one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from nemo_uecr.errors import DataError, RunFolderError

#: Name of the lock in a run folder.
LOCK = "run.lock"
#: Environment variable with the mounts of a job's container, FROM:TO,...; slurm/arguments.sh sets it.
JOB_MOUNTS = "UECR_JOB_MOUNTS"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new."""
    with replaced_file(path) as file:
        file.write(content)


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A file to fill; it replaces ``path`` if the block ends without an error."""
    # A fixed name, so that the next writer replaces what a kill left; `mkstemp` would also deny access to the group.
    aside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):  # not made, or its folder is a file
            aside.unlink()
        _name(error, path, aside)
        raise
    sync_folder(path.parent)


def append_whole(path: Path, content: bytes) -> None:
    """Append everything or nothing, and flush it to disk; only a kill may leave a part."""
    rest = memoryview(content)
    with path.open("ab", buffering=0) as file:  # a buffer would be written again on closing
        end = file.seek(0, os.SEEK_END)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(end)
            _name(error, path, path)
            raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; it replaces ``path`` if the block ends without an error."""
    recover_folder(path)
    path = path.resolve()  # "." has no name, and a link's target may be on another disk
    aside, old = path.with_name(f".{path.name}.tmp"), _moved_away(path)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        for inner in (*aside.rglob("*"), aside):
            sync_folder(inner)
        if path.exists():  # rename first: a kill while removing it would leave half a folder
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        aside.rename(path)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        recover_folder(path)
        _name(error, path, aside)
        raise
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Restore a folder after a kill between the two renames of `new_folder`."""
    path = path.resolve()
    if _moved_away(path).exists() and not path.exists():
        _moved_away(path).rename(path)


def _moved_away(path: Path) -> Path:
    return path.with_name(f".{path.name}.old.tmp")


def sync_folder(path: Path) -> None:
    """Flush a folder's entries or a file's content to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(error: BaseException, path: Path, aside: Path) -> None:
    """Put the requested path into an error that names none, or only the temporary file."""
    if isinstance(error, OSError) and (error.filename is None or str(aside) in str(error.filename)):
        error.filename = str(path)
        del error.filename2  # None would be printed: 'path' -> None


@contextmanager
def locked(folder: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Lock a run folder, created if missing; wait up to ``wait`` seconds for another holder.

    The lock is an `flock`, which ends with the process and which NFS passes on to other nodes. On a file system without
    locks, filelock uses the file's existence, and a killed run's `run.lock` must be removed by hand. A folder created
    here is removed again if it stays empty.
    """
    made = not folder.exists()
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise RunFolderError(f"{folder} is in use by another process; wait for it or choose another folder") from None
    try:
        yield
    finally:
        if made and [path.name for path in folder.iterdir()] == [LOCK]:
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def in_use(folder: Path) -> bool:
    """Whether another process holds a run folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except PermissionError:  # another user's folder
        return False
    except Timeout:
        return True


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written or created, before hours of work for it."""
    check_mounted(folder)
    try:
        tempfile.TemporaryFile(dir=existing(folder)).close()
    except OSError as error:
        raise RunFolderError(f"cannot write {folder}: {error.strerror}; choose another folder") from error


def check_mounted(folder: Path, *, key: str = "", remedy: str = "") -> None:
    """Refuse a folder that would lie in a job's container itself, and vanish with it."""
    mounts = [mount.split(":")[:2][-1] for mount in os.environ.get(JOB_MOUNTS, "").split(",") if mount]
    place = folder.expanduser().resolve()
    if mounts and not any(place.is_relative_to(Path(mount).resolve()) for mount in mounts):
        remedy = remedy or f"--mounts {place.parent}:{place.parent}"
        raise RunFolderError(f"{key}{folder} is outside the container's mounts: {remedy}")


def existing(path: Path) -> Path:
    """The path, or its nearest existing parent."""
    path = path.expanduser().absolute()
    return next(place for place in (path, *path.parents) if place.exists())


def file_sha256(path: Path) -> str:
    """SHA-256 of a file as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(folder: Path) -> list[Path]:
    """Every file in a folder and in those inside, sorted."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digests(files: Iterable[Path], folder: Path) -> dict[str, str]:
    """SHA-256 of files by their path within a folder: what a record keeps, and `file_fault` compares."""
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}


def describe_file(path: Path) -> dict[str, object]:
    """Size and digest of a file."""
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


def digest_of(files: Mapping[str, Path]) -> str:
    """One digest of the names and contents of files, in their order."""
    whole = hashlib.sha256()
    for name, path in files.items():
        whole.update(f"{name}:{file_sha256(path)}\n".encode())
    return whole.hexdigest()


def file_fault(path: Path, sha256: str) -> str | None:
    """What is wrong with a file whose digest is on record."""
    if not path.is_file():
        return "missing"
    return None if file_sha256(path) == sha256 else "content changed"


#: What Git leaves in place of a large file where its extension LFS is missing.
POINTER = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(path: Path) -> None:
    """Refuse a file that only says where Git LFS has the real one."""
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise DataError(
                f"{path} is a pointer of Git LFS and not the file itself; run git lfs pull there, or download it"
            )


def read_object(path: Path, *, form: str | None = None) -> dict[str, Any]:
    """Read a file with one JSON object, of this `format`; DataError if it is missing, malformed or of another."""
    try:
        refuse_pointer(path)
        written = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); expected a JSON object") from None
    try:
        content = json.loads(written)
    except ValueError as error:
        raise DataError(f"{path}: malformed JSON ({error}); the file is truncated or corrupt") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: got {type(content).__name__}; expected one JSON object")
    if form is not None and content.get("format") != form:
        raise DataError(f"{path}: format {content.get('format')!r}; expected {form!r}")
    return content
