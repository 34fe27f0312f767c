"""Files are old or new, never a part."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_uecr.data.atomic import new_folder, recover_folder, replace_file
from nemo_uecr.errors import RunFolderError


def test_replace_file_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_failed_write_keeps_the_old_content_and_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as error:
            replace_file(path, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


class Journal:
    """What reaches the disk in which order: the file behind every fsync, and every rename."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, Path]] = []
        real_fsync, real_rename, real_replace = os.fsync, os.rename, os.replace

        def fsync(descriptor: int) -> None:
            self.events.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
            real_fsync(descriptor)

        def rename(source: object, target: object) -> None:
            self.events.append(("rename", Path(str(target))))
            real_rename(str(source), str(target))

        def replace(source: object, target: object) -> None:
            self.events.append(("rename", Path(str(target))))
            real_replace(str(source), str(target))

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "rename", rename)
        monkeypatch.setattr(os, "replace", replace)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads names of open files from /proc")
@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_what_somebody_put_beside_is_not_written_into(tmp_path: Path, kind: str) -> None:
    victim, beside = tmp_path / "victim", tmp_path / ".file.tmp"
    victim.write_bytes(b"precious")
    if kind == "link":
        beside.symlink_to(victim)
    elif kind == "hard link":
        beside.hardlink_to(victim)
    else:
        os.mkfifo(beside)
    with pytest.raises(OSError, match=r"symbolic links|no file of its own|No such device") as error:
        replace_file(tmp_path / "file", b"new")
    assert error.value.filename in (str(beside), str(tmp_path / "file"))
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "file").exists()


def test_two_writers_of_one_file_both_succeed_whole(tmp_path: Path) -> None:
    """Each writes its own letter many times over; what stands there is one writer's, always."""
    path = tmp_path / "file"
    program = (
        "import sys; from pathlib import Path; from nemo_uecr.data.atomic import replace_file\n"
        "for _ in range(60): replace_file(Path(sys.argv[1]), sys.argv[2].encode() * 300_000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), letter]) for letter in "ab"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            content = path.read_bytes()
            assert len(content) == 300_000
            seen |= set(content)
            assert len(set(content)) == 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= set(b"ab")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(monkeypatch)
    replace_file(tmp_path / "a.json", b"1")
    assert journal.events == [("sync", tmp_path / ".a.json.tmp"), ("rename", tmp_path / "a.json"), ("sync", tmp_path)]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads names of open files from /proc")
def test_folder_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(monkeypatch)
    aside = tmp_path / ".c.tmp"
    with new_folder(tmp_path / "c") as folder:
        (folder / "weights").write_bytes(b"w" * 10)
        (folder / "inner").mkdir()
        (folder / "inner" / "state").write_bytes(b"s")
    assert journal.events == [
        ("sync", aside / "inner"),
        ("sync", aside / "inner" / "state"),
        ("sync", aside / "weights"),
        ("sync", aside),
        ("rename", tmp_path / "c"),
        ("sync", tmp_path),
    ]


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    """A rename onto a device node or a pipe would leave a file in its place."""
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    for path in (pipe, folder, link):
        before = path.lstat().st_mode
        with pytest.raises(OSError, match="it exists and is no regular file") as error:
            replace_file(path, b"new")
        assert error.value.filename == str(path)
        assert path.lstat().st_mode == before
    assert sorted(found.name for found in tmp_path.iterdir()) == ["folder", "link", "pipe"]


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="it exists and is no folder"), new_folder(path):
        pass
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


KILLED = """
import os, signal, sys
from pathlib import Path
from nemo_uecr.data.atomic import new_folder
real, last = os.rename, int(sys.argv[2])
count = 0
def rename(source, target):
    global count
    if last == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
os.rename = rename
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "file").write_text("new")
"""


@pytest.mark.parametrize(("renames", "content"), [(0, "old"), (1, "old"), (2, "new")])
def test_a_kill_in_the_exchange_loses_nothing(tmp_path: Path, renames: int, content: str) -> None:
    """Before the old folder moves away, between the two renames, and after both, when the old one is still there."""
    path = tmp_path / "c"
    path.mkdir()
    (path / "file").write_text("old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path), str(renames)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.exists() is (renames != 1)
    assert (tmp_path / ".c.old.tmp").exists() is (renames > 0)
    recover_folder(path)
    assert (path / "file").read_text() == content


def test_new_folder_takes_up_a_folder_that_a_kill_left_without_its_name(tmp_path: Path) -> None:
    path = tmp_path / "c"
    (tmp_path / ".c.old.tmp").mkdir()
    (tmp_path / ".c.old.tmp" / "file").write_text("old")

    def give_up() -> None:
        with new_folder(path):
            assert (path / "file").read_text() == "old"  # for whoever reads it while the new one is made
            raise RuntimeError

    with pytest.raises(RuntimeError):
        give_up()
    assert (path / "file").read_text() == "old"


@pytest.mark.parametrize("name", [".", "..", "../../c", "../inner", "../link"])
def test_the_folder_we_run_in_is_not_exchanged(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell that called us would stand in a removed folder."""
    inner = tmp_path / "c" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "c" / "link").symlink_to(inner)
    monkeypatch.chdir(inner)
    with pytest.raises(RunFolderError, match="is the current folder, or one above it"), new_folder(Path(name)):
        pass
    assert Path.cwd() == inner
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["c", "inner", "link"]


def test_folders_beside_and_below_the_current_one_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c-other").mkdir()
    monkeypatch.chdir(tmp_path / "c")
    for name in ("../c-other", "below", "below"):
        with new_folder(Path(name)) as folder:
            (folder / "file").write_text("new")
        assert Path(name, "file").read_text() == "new"


def test_a_link_to_a_folder_stays_and_its_folder_is_exchanged(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    for content in ("1", "2", "3"):
        with new_folder(tmp_path / "link") as folder:
            (folder / "file").write_text(content)
        assert (tmp_path / "disk" / "file").read_text() == content
    assert sorted(found.name for found in tmp_path.iterdir()) == ["disk", "link"]
    (tmp_path / "disk").rename(tmp_path / ".disk.old.tmp")  # what a kill between the two renames leaves
    recover_folder(tmp_path / "link")
    assert (tmp_path / "link" / "file").read_text() == "3"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads names of open files from /proc")
def test_an_old_folder_is_moved_away_whole_and_not_removed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c").mkdir()
    journal = Journal(monkeypatch)
    with new_folder(tmp_path / "c"):
        pass
    assert [path.name for kind, path in journal.events if kind == "rename"] == [".c.old.tmp", "c"]


def test_a_second_writer_of_a_folder_is_refused_and_the_first_one_is_not_disturbed(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with new_folder(target) as aside:
        (aside / "file").write_text("first", encoding="utf-8")
        with pytest.raises(RunFolderError, match="being written by another process; wait"), new_folder(target):
            pass
        target.with_name(".out.old.tmp").mkdir()  # as in the middle of the exchange
        recover_folder(target)
        assert not target.exists()
        target.with_name(".out.old.tmp").rmdir()
    assert (target / "file").read_text(encoding="utf-8") == "first"
    assert [found.name for found in tmp_path.iterdir()] == ["out"]
