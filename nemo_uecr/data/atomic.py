"""Files and folders that are complete or absent: written aside, pushed to disk, renamed; lines that are whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nemo_uecr.data.aside import name_aside, open_aside, same_file
from nemo_uecr.data.lock_file import open_lock, take_lock
from nemo_uecr.errors import RunFolderError


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Raises:
        OSError: If it cannot be written, or the path is a device, a pipe or a folder: a rename would put a file there.
    """
    with replaced_file(path) as file:
        file.write(content)


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A file to fill that takes its place only when the block ends without an error.

    Raises:
        OSError: as `replace_file`.
    """
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = name_aside(path)
    file = open_aside(path)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        aside.replace(path)  # before the file is closed: until then no other writer has the name
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a failed write does not know it
        raise
    finally:
        with suppress(OSError):  # after a failed write the rest fails again
            file.close()
    sync_folder(path.parent)


def append_whole(path: Path, content: bytes) -> None:
    """Add to a file's end, all of it or nothing, and push it to disk; a kill may leave a part.

    Raises:
        OSError: naming the file, which ends as it did before.
    """
    rest = memoryview(content)
    with path.open("ab", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(end)
            error.filename = str(path)  # a failed write does not know it
            raise


def check_replaceable(path: Path) -> None:
    """Refuse a device, a pipe or a folder, in whose place a rename would put a regular file.

    Raises:
        OSError: naming the path.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it exists and is no regular file", str(path))


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill that appears under its name only when the block ends without an error.

    Raises:
        OSError: If it cannot be written, or the path is something other than a folder.
        RunFolderError: If it is there and this process runs in it, or another one is writing it.
    """
    if path.exists() and not path.is_dir():
        raise OSError(errno.ENOTDIR, "it exists and is no folder", str(path))
    path = _real(path)
    check_exchangeable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with only_writer(path), exchanged_folder(path) as aside:
        yield aside


@contextmanager
def absent_folder(path: Path) -> Iterator[Path]:
    """`new_folder` under a name that nobody uses: what appears there meanwhile stays, and what was filled goes.

    Raises:
        OSError: If it cannot be written.
        RunFolderError: If something stands there, before or after, or another one is writing it.
    """
    path = _real(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with only_writer(path):
        aside = path.with_name(f".{path.name}.tmp")
        if path.exists():  # also what a killed exchange had moved away, which has its name back by now
            raise RunFolderError(f"{path} exists; expected a new folder to unpack into")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        try:
            yield aside
            sync_tree(aside)
            _rename_to_nothing(aside, path)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync_folder(path.parent)


def _rename_to_nothing(aside: Path, path: Path) -> None:
    """An empty folder gives way, as everywhere; anything else stays."""
    try:
        if path.exists() and not path.is_dir():
            raise OSError(errno.EEXIST, "a file", str(path))
        aside.rename(path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        raise RunFolderError(
            f"{path} appeared while its files were being written and is left as it is; choose another folder"
        ) from error


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold a folder's name from the first look at it to its exchange, so that nobody changes it in between.

    Raises:
        RunFolderError: If another one holds it.
    """
    path = _real(path)
    with _only_one(path):
        _recover(path)
        yield


@contextmanager
def exchanged_folder(path: Path) -> Iterator[Path]:
    """`new_folder` for who holds the folder's name already, by `only_writer`."""
    path = _real(path)
    aside = path.with_name(f".{path.name}.tmp")
    old = _moved_away(path)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        sync_tree(aside)
        if path.exists():  # moved away whole: a kill in the middle of a removal would leave half a folder
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        aside.rename(path)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError) and (error.filename is None or str(aside) in str(error.filename)):
            error.filename = str(path)  # a failed write does not know it, and the place aside is gone
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Give a folder its name back if a kill came between the two renames of its exchange."""
    path = _real(path)
    if _moved_away(path).is_dir() and not path.exists():
        with suppress(RunFolderError), _only_one(path):  # whoever holds it is in the middle of the exchange
            _recover(path)


def _recover(path: Path) -> None:
    old = _moved_away(path)
    if old.is_dir() and not path.exists():
        old.rename(path)
        sync_folder(path.parent)


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold a folder's name for this block; a killed process lets go of it. Without locks it goes on with a warning.

    Raises:
        RunFolderError: If another one holds it.
    """
    lock = path.with_name(f".{path.name}.lock.tmp")
    while True:
        with open_lock(lock) as file:
            try:
                take_lock(file, path)
            except BlockingIOError:
                raise RunFolderError(
                    f"{path} is being written by another process; wait for its end or choose another folder"
                ) from None
            if not same_file(lock, file.fileno()):
                continue  # its last holder has removed it since we opened it
            try:
                yield
            finally:
                if same_file(lock, file.fileno()):  # else somebody removed ours, and this one is another's
                    lock.unlink(missing_ok=True)
            return


def sync_tree(folder: Path) -> None:
    """Push everything in a folder to disk, and the folder itself."""
    for path in sorted(folder.rglob("*")):
        sync_folder(path)
    sync_folder(folder)


def check_exchangeable(path: Path) -> None:
    """Refuse to exchange the folder we run in, or one above it: the user's shell would stand in a removed folder.

    Raises:
        RunFolderError: naming it.
    """
    path = _real(path)
    try:
        current = Path(os.getcwd())
    except FileNotFoundError:
        return  # removed before us
    if path.is_dir() and current.is_relative_to(path):
        raise RunFolderError(
            f"{path} is the current folder, or one above it, and would be exchanged for a new one; "
            "expected another folder: change to one outside it and run the command there"
        )


def sync_folder(path: Path) -> None:
    """Push a folder's entries to disk, so that a rename survives a power cut; or a file's content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _real(path: Path) -> Path:
    """The folder that a path means: "." has no name to write beside, and beside a link is not beside its folder."""
    return Path(os.path.realpath(path))


def _moved_away(path: Path) -> Path:
    return path.with_name(f".{path.name}.old.tmp")
