"""Locks: what stands in their place is never emptied, waited for or followed; without locks there is a warning."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TextIO

import pytest

from nemo_uecr.data import atomic
from nemo_uecr.data.atomic import new_folder, only_writer
from nemo_uecr.data.lock_file import is_held, take_lock
from nemo_uecr.data.run_lock import locked
from nemo_uecr.errors import RunFolderError

Holder = Callable[[Path], AbstractContextManager[object]]


def lock_of(hold: Holder, folder: Path) -> Path:
    return folder / "run.lock" if hold is locked else folder.with_name(f".{folder.name}.lock.tmp")


@pytest.mark.parametrize("hold", [locked, only_writer, new_folder])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_what_stands_in_the_place_of_a_lock_is_not_touched(hold: Holder, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "mine").write_text("precious", encoding="utf-8")
    lock = lock_of(hold, folder)
    if kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(tmp_path / ("mine" if kind == "link" else "nowhere"))
    before = lock.lstat()
    with pytest.raises((OSError, RunFolderError), match=r"it is a link|no regular file"), hold(folder):
        pass
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "precious"
    assert not (tmp_path / "nowhere").exists()
    assert os.path.samestat(lock.lstat(), before)


@pytest.mark.parametrize("hold", [locked, only_writer])
def test_a_link_that_comes_after_the_look_is_not_followed(
    hold: Holder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock_of(hold, folder).symlink_to(tmp_path / "nowhere")
    monkeypatch.setattr(Path, "is_symlink", lambda _: False)
    with pytest.raises((OSError, RunFolderError), match="symbolic links"), hold(folder):
        pass
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("hold", [locked, only_writer])
def test_a_lock_of_another_keeps_its_content(hold: Holder, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    lock = lock_of(hold, folder)
    lock.write_text("4711", encoding="utf-8")
    with lock.open(encoding="utf-8") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError), hold(folder):
            pass
    assert lock.read_text(encoding="utf-8") == "4711"


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"12\n34", b"words", b"", b"1" * 10_000])
def test_a_held_lock_with_other_content_is_one_short_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_bytes(content)
    with (tmp_path / "run.lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RunFolderError, match=r" is in use by process (\?|1{20}); wait") as raised, locked(tmp_path):
            pass
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_folder_is_written_where_there_are_no_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING), new_folder(tmp_path / "out") as aside:
        (aside / "file").write_text("new", encoding="utf-8")
    assert "its file system has no locks" in caplog.text
    assert (tmp_path / "out" / "file").read_text(encoding="utf-8") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_lock_that_its_holder_has_removed_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our opening and our locking the holder ends and a third one makes the file anew and holds that."""
    folder, lock = tmp_path / "out", tmp_path / ".out.lock.tmp"
    third: list[TextIO] = []

    def late(file: TextIO, path: Path) -> bool:
        if not third:
            lock.unlink()
            third.append(lock.open("w", encoding="utf-8"))
            fcntl.flock(third[0], fcntl.LOCK_EX)
        return take_lock(file, path)

    monkeypatch.setattr(atomic, "take_lock", late)
    with pytest.raises(RunFolderError, match="being written by another process"), only_writer(folder):
        pass
    third[0].close()


def test_the_lock_of_another_is_left_where_ours_was_removed(tmp_path: Path) -> None:
    """Somebody removes the file that we hold, and another process makes and holds it anew: a third must not get in."""
    folder, lock = tmp_path / "out", tmp_path / ".out.lock.tmp"
    with contextlib.ExitStack() as others:
        with only_writer(folder):
            lock.unlink()
            others.enter_context(only_writer(folder))
        with pytest.raises(RunFolderError, match="being written by another process"), only_writer(folder):
            pass
    assert not lock.exists()


def test_who_holds_a_folder_finds_it_under_its_name(tmp_path: Path) -> None:
    """A kill between the two renames of an exchange left it without."""
    left = tmp_path / ".out.old.tmp"
    left.mkdir()
    (left / "file").write_text("old", encoding="utf-8")
    with only_writer(tmp_path / "out"):
        assert (tmp_path / "out" / "file").read_text(encoding="utf-8") == "old"


def test_the_old_folder_is_back_after_a_rename_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"
    path.mkdir()
    (path / "file").write_text("old", encoding="utf-8")
    real = os.rename

    def rename(source: object, target: object) -> None:
        if Path(str(source)).name == ".out.tmp":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(str(source), str(target))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="No space left"), new_folder(path) as aside:
        (aside / "file").write_text("new", encoding="utf-8")
    assert (path / "file").read_text(encoding="utf-8") == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["free", "held", "link to a held one", "pipe", "nothing", "no locks"])
def test_whether_a_lock_is_held_is_seen_without_touching_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, other = tmp_path / "run.lock", tmp_path / "other.lock"
    target = other if kind.startswith("link") else lock
    target.write_text("4711", encoding="utf-8")
    if kind.startswith("link"):
        lock.symlink_to(other)
    elif kind in ("pipe", "nothing"):
        lock.unlink()
    if kind == "pipe":
        os.mkfifo(lock)
    if kind == "no locks":
        monkeypatch.setattr(fcntl, "flock", without_locks)
    before = sorted((path.name, path.lstat().st_mtime_ns) for path in tmp_path.iterdir())
    with (target if target.is_file() else Path(__file__)).open(encoding="utf-8") as holder:
        if kind in ("held", "link to a held one"):
            fcntl.flock(holder, fcntl.LOCK_EX)
        assert is_held(lock) == (kind == "held")
    assert sorted((path.name, path.lstat().st_mtime_ns) for path in tmp_path.iterdir()) == before


def without_locks(*arguments: object) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
