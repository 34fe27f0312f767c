"""Archives of run folders: there and back, and everything that must not get out of one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from functools import partial
from pathlib import Path

import pytest

from nemo_uecr.data.archive import FORMAT, GIB, INDEX, pack
from nemo_uecr.data.archive import unpack as unpack_up_to
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
    (folder / "latest").symlink_to("batches", target_is_directory=True)  # W&B makes some
    assert pack(folder, tmp_path / "a.tar.gz", checkpoints=True) == 3
    assert unpack(tmp_path / "a.tar.gz", tmp_path / "new") == 3
    assert contents(tmp_path / "new") == FILES
    assert pack(folder, tmp_path / "b.tar.gz", checkpoints=False) == 2
    unpack(tmp_path / "b.tar.gz", tmp_path / "light")
    assert sorted(contents(tmp_path / "light")) == ["batches/step-1.bin", "config.yaml"]


def test_equal_folders_give_equal_archives(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    (folder / "config.yaml").touch()
    (folder / "config.yaml").chmod(0o600)
    pack(folder, tmp_path / "b.tar.gz", checkpoints=True)
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_nothing_is_written_over(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    for out, message in (("a.tar.gz", "exists; expected a new archive"), ("run/b.tar.gz", "in the folder that it")):
        with pytest.raises(RunFolderError, match=message):
            pack(folder, tmp_path / out, checkpoints=True)
    with pytest.raises(RunFolderError, match="exists; expected a new folder"):
        unpack(tmp_path / "a.tar.gz", folder)


def member(name: str, content: bytes, **changes: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in changes.items():
        setattr(info, key, value)
    return info, content


def made(path: Path, *members: tuple[tarfile.TarInfo, bytes], listed: dict[str, bytes]) -> Path:
    """An archive as somebody else may make one, with an index of these files."""
    files = {name: hashlib.sha256(content).hexdigest() for name, content in listed.items()}
    index = json.dumps({"format": FORMAT, "files": files}).encode()
    with tarfile.open(path, "w:gz") as archive:
        for info, content in (member(INDEX, index), *members):
            archive.addfile(info, io.BytesIO(content))
    return path


ESCAPES = [
    member("../out", b"1"),
    member("/tmp/out", b"1"),
    member("link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    member("link", b"", type=tarfile.LNKTYPE, linkname="../out"),
]


@pytest.mark.parametrize("bad", ESCAPES, ids=lambda each: f"{each[0].name} {each[0].type!r}")
def test_nothing_gets_out_of_the_folder(tmp_path: Path, bad: tuple[tarfile.TarInfo, bytes]) -> None:
    archive = made(tmp_path / "a.tar.gz", bad, listed={bad[0].name: bad[1]})
    with pytest.raises(DataError):
        unpack(archive, tmp_path / "in" / "new")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] in (["a.tar.gz"], ["in", "a.tar.gz"]) or {
        path.name for path in tmp_path.iterdir()
    } == {"a.tar.gz", "in"}
    assert not (tmp_path / "in" / "new").exists()


def test_an_index_that_disagrees(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'a' is not the one of the index"):
        unpack(made(tmp_path / "a.tar.gz", member("a", b"other"), listed={"a": b"1"}), tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_more_bytes_than_the_limit(tmp_path: Path) -> None:
    """Declared in the header; a bomb is refused before it is unpacked."""
    info = tarfile.TarInfo("a")
    info.size = GIB + 1
    index = json.dumps({"format": FORMAT, "files": {"a": "0"}}).encode()
    first = tarfile.TarInfo(INDEX)
    first.size = len(index)
    tar = first.tobuf() + index + bytes(-len(index) % 512) + info.tobuf()
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar))
    with pytest.raises(DataError, match="more than 1 GiB, the limit; nothing is unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize("damage", ["cut", "another archive"])
def test_damage_is_one_line(folder: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.tar.gz"
    pack(folder, path, checkpoints=True)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(folder / "config.yaml", "config.yaml")
    with pytest.raises(DataError):
        unpack(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
