"""Archives of run folders: there and back, and everything that must not get out of one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from functools import partial
from pathlib import Path

import pytest

from nemo_uecr.data import archive as packing
from nemo_uecr.data.archive import FORMAT, INDEX, pack
from nemo_uecr.data.unpacking import unpack as unpack_up_to
from nemo_uecr.errors import DataError, RunFolderError

unpack = partial(unpack_up_to, max_gib=1)
FILES = {"config.yaml": b"a: 1\n", "batches/step-1.bin": bytes(range(256)) * 99, "checkpoints/step-1/model": b"w"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    for name, content in {**FILES, "run.lock": b"1", ".metrics.tmp": b"half", ".aside/file": b"half"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    assert pack(folder, tmp_path / "a.tar.gz", checkpoints=True) == 3
    assert unpack(tmp_path / "a.tar.gz", tmp_path / "new") == 3
    assert contents(tmp_path / "new") == FILES
    assert pack(folder, tmp_path / "b.tar.gz", checkpoints=False) == 2
    unpack(tmp_path / "b.tar.gz", tmp_path / "light")
    assert sorted(contents(tmp_path / "light")) == ["batches/step-1.bin", "config.yaml"]


def test_an_archive_is_not_written_over(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"mine")
    with pytest.raises(RunFolderError, match=r"a\.tar\.gz exists; expected a new archive"):
        pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    assert (tmp_path / "a.tar.gz").read_bytes() == b"mine"


def test_a_link_that_leads_nowhere_is_not_replaced_by_an_archive(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").symlink_to(tmp_path / "disk" / "a.tar.gz")
    with pytest.raises(RunFolderError, match=r"a\.tar\.gz exists; expected a new archive"):
        pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    assert (tmp_path / "a.tar.gz").is_symlink()


@pytest.mark.parametrize("name", ["wandb/12:30.log", "a\\b"])
def test_a_name_that_unpack_would_refuse_is_not_packed(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    with pytest.raises(RunFolderError, match=r"run has a file '.*'; expected names without ':' and '.', which"):
        pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    assert not (tmp_path / "a.tar.gz").exists()


def test_more_files_than_an_archive_takes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_FILES", 2)
    with pytest.raises(RunFolderError, match=r"run has 3 files, .* expected at most 2 files"):
        pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    assert not (tmp_path / "a.tar.gz").exists()


def test_equal_folders_give_equal_archives(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    os.utime(folder / "config.yaml", (1, 1))
    (folder / "config.yaml").chmod(0o600)
    pack(folder, tmp_path / "b.tar.gz", checkpoints=True)
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def made(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], *, index: dict[str, str] | None = None) -> Path:
    """An archive with an index that agrees with what is in it, unless told otherwise."""
    digests = {info.name: hashlib.sha256(content).hexdigest() for info, content in members}
    text = json.dumps({"format": FORMAT, "files": digests if index is None else index}).encode()
    head = tarfile.TarInfo(INDEX)
    with tarfile.open(path, "w:gz") as archive:
        for info, content in [(head, text), *members]:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "name",
    ["../out", "/etc/out", "a/../../out", "./a", "a//b", "..", "a\\..\\..\\out", "C:/out", "a/./b", "~/../../out/.."],
)
def test_a_name_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    archive = made(tmp_path / "bad.tar.gz", [(member("good"), b"1"), (member(name), b"2")])
    with pytest.raises(DataError, match="leads outside the folder"):
        unpack(archive, tmp_path / "below" / "new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["bad.tar.gz", "below"]


def test_a_zero_in_a_name_is_refused(tmp_path: Path) -> None:
    """A plain header ends a name there; an extended one carries it on, and no file can be opened by it."""
    odd, name = member("a"), "a\0b"
    odd.pax_headers = {"path": name}
    digest = hashlib.sha256(b"1").hexdigest()
    archive = made(tmp_path / "bad.tar.gz", [(odd, b"1")], index={name: digest})
    with pytest.raises(DataError, match="leads outside the folder"):
        unpack(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc"), (tarfile.SYMTYPE, "good"), (tarfile.LNKTYPE, "good"),
        (tarfile.FIFOTYPE, ""), (tarfile.CHRTYPE, ""), (tarfile.DIRTYPE, ""),
    ],
)  # fmt: skip
def test_only_plain_files(tmp_path: Path, kind: bytes, link: str) -> None:
    archive = made(tmp_path / "bad.tar.gz", [(member("good"), b"1"), (member("odd", kind, link), b"")])
    with pytest.raises(DataError, match="no plain file"):
        unpack(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_index_that_disagrees(tmp_path: Path) -> None:
    one = hashlib.sha256(b"1").hexdigest()
    cases = {
        "another content": made(tmp_path / "a.tar.gz", [(member("a"), b"2")], index={"a": one}),
        "not in the index once": made(tmp_path / "b.tar.gz", [(member("a"), b"1")], index={}),
        "'b' is missing": made(tmp_path / "c.tar.gz", [(member("a"), b"1")], index={"a": one, "b": one}),
        "a' is not in the index once": made(
            tmp_path / "d.tar.gz", [(member("a"), b"1"), (member("a"), b"1")], index={"a": one}
        ),
    }
    for message, archive in cases.items():
        with pytest.raises(DataError, match=message):
            unpack(archive, tmp_path / "new")
        assert not (tmp_path / "new").exists()


# Names of their own: a gzip header holds the time of day, and two test processes must see the same names.
@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"no tar"), "cut", "flipped", "headless"],
    ids=["empty", "no archive", "no tar", "cut", "flipped", "headless"],
)
def test_damage_is_one_line(folder: Path, tmp_path: Path, content: bytes | str) -> None:
    archive = tmp_path / "a.tar.gz"
    pack(folder, archive, checkpoints=True)
    raw = archive.read_bytes()
    if content == "headless":
        with tarfile.open(archive, "w:gz") as new:
            new.addfile(member("config.yaml"), io.BytesIO(b""))
    else:
        middle = len(raw) // 2
        variants = {"cut": raw[:middle], "flipped": raw[:middle] + bytes([raw[middle] ^ 255]) + raw[middle + 1 :]}
        archive.write_bytes(variants[content] if isinstance(content, str) else content)
    with pytest.raises(DataError):
        unpack(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_over(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    (tmp_path / "mine").mkdir()
    with pytest.raises(RunFolderError, match="exists"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "mine")


def test_a_link_is_never_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not the run's")
    (folder / "latest").symlink_to("batches", target_is_directory=True)
    (folder / "outside").symlink_to(tmp_path, target_is_directory=True)
    (folder / "link").symlink_to(tmp_path / "secret")
    assert pack(folder, tmp_path / "a.tar.gz", checkpoints=True) == 3
    unpack(tmp_path / "a.tar.gz", tmp_path / "new")
    assert contents(tmp_path / "new") == FILES


def test_a_link_that_leads_nowhere_is_no_new_folder(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="exists; expected a new folder"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_an_archive_does_not_hold_itself(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(RunFolderError, match="in the folder that it would hold"):
        pack(folder, folder / "batches" / "a.tar.gz", checkpoints=True)
    assert sorted(folder.rglob("*")) == before
