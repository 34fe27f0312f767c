"""Files and folders are old or new, never a part; one run at a time holds a folder."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.files import (
    append_whole,
    check_writable,
    digest_of,
    digests,
    file_fault,
    files_below,
    in_use,
    locked,
    new_folder,
    read_object,
    replace_file,
)


@contextmanager
def room(bytes_a_file: int) -> Iterator[None]:
    """A limit on the size of files, which fails a write as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_a_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(path: Path, content: bytes) -> None:
    with new_folder(path) as folder:
        (folder / "file").write_bytes(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_others_may_read_a_file_as_far_as_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize("write", [replace_file, append_whole, fill])
def test_a_full_disk_keeps_the_old_content_and_names_the_path(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "c"
    write(path, b"old")
    with room(1000), pytest.raises(OSError, match="too large") as error:
        write(path, b"x" * 5000)
    assert str(error.value).endswith(f": '{path}'")
    assert (path / "file" if write is fill else path).read_bytes() == b"old"
    assert names(tmp_path) == ["c"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads names of open files from /proc")
def test_content_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []

    def note(name: str) -> None:
        real = getattr(os, name)

        def noting(*given: Any) -> None:
            events.append((name, Path(os.readlink(f"/proc/self/fd/{given[0]}") if name == "fsync" else given[1]).name))
            real(*given)

        monkeypatch.setattr(os, name, noting)

    for name in ("fsync", "rename", "replace"):
        note(name)
    replace_file(tmp_path / "a.json", b"1")
    assert events == [("fsync", ".a.json.tmp"), ("replace", "a.json"), ("fsync", tmp_path.name)]
    events.clear()
    fill(tmp_path / "c", b"1")
    assert events == [("fsync", "file"), ("fsync", ".c.tmp"), ("rename", "c"), ("fsync", tmp_path.name)]


KILLED = """
import os, signal, sys
from pathlib import Path
from nemo_uecr.files import new_folder
real, left = os.rename, int(sys.argv[2])
def rename(source, target):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    real(source, target)
os.rename = rename
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "file").write_text("new")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("renames", "content"), [(0, b"old"), (1, b"old"), (2, b"new")])
def test_a_kill_in_the_exchange_loses_nothing(tmp_path: Path, renames: int, content: bytes) -> None:
    path = tmp_path / "c"
    fill(path, b"old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path), str(renames)], check=False)
    assert ended.returncode == -signal.SIGKILL

    def interrupted() -> None:
        with new_folder(path):
            assert (path / "file").read_bytes() == content  # it has its name back
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (path / "file").read_bytes() == content
    assert names(tmp_path) == ["c"]


def test_a_second_run_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert not in_use(run)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        with locked(run):
            os.write(writing, b"x")
            signal.pause()
    os.read(reading, 1)
    try:
        assert in_use(run)
        with pytest.raises(RunFolderError, match="in use"), locked(run):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not in_use(run)
    with locked(run, wait=5.0):
        pass


def test_a_folder_made_for_a_run_that_writes_nothing_goes_again(tmp_path: Path) -> None:
    with locked(tmp_path / "empty"):
        pass
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "config.yaml").write_text("")
    assert names(tmp_path) == ["run"]


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder")
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot write"):
        check_writable(tmp_path / "file" / "folder")
    with pytest.raises(RunFolderError, match="cannot write"), locked(tmp_path / "file"):
        pass


def test_a_record_of_digests_tells_every_change(tmp_path: Path) -> None:
    for name in ("b.txt", "in/a.txt"):
        replace_file(tmp_path / name, name.encode())
    before = digests(files_below(tmp_path), tmp_path)
    assert list(before) == ["b.txt", "in/a.txt"]
    whole = digest_of({path.name: path for path in files_below(tmp_path)})
    (tmp_path / "b.txt").write_text("other")
    (tmp_path / "in" / "a.txt").unlink()
    assert {name: file_fault(tmp_path / name, sha256) for name, sha256 in before.items()} == {
        "b.txt": "content changed",
        "in/a.txt": "missing",
    }
    replace_file(tmp_path / "in" / "a.txt", b"in/a.txt")
    assert file_fault(tmp_path / "in" / "a.txt", before["in/a.txt"]) is None
    assert digest_of({path.name: path for path in files_below(tmp_path)}) != whole


def test_a_record_of_another_format_is_refused(tmp_path: Path) -> None:
    replace_file(tmp_path / "record.json", b'{"format": "nemo_uecr.plan/1"}')
    assert read_object(tmp_path / "record.json", form="nemo_uecr.plan/1") == {"format": "nemo_uecr.plan/1"}
    with pytest.raises(DataError, match=r"record\.json: format 'nemo_uecr\.plan/1'; expected 'nemo_uecr\.plan/2'"):
        read_object(tmp_path / "record.json", form="nemo_uecr.plan/2")
