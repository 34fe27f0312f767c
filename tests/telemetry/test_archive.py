"""Archives of run folders: there and back, and everything that must not get out of one."""

from __future__ import annotations

import gzip
import tarfile
from functools import partial
from pathlib import Path

import pytest

from nemo_uecr.errors import DataError, RunFolderError
from nemo_uecr.telemetry.archive import GIB, pack
from nemo_uecr.telemetry.archive import unpack as unpack_up_to

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
    (folder / "config.yaml").touch()
    (folder / "config.yaml").chmod(0o600)
    pack(folder, tmp_path / "c.tar.gz", checkpoints=True)  # equal folders give equal archives
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "c.tar.gz").read_bytes()


def test_nothing_is_written_over(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    for out in ("a.tar.gz", "run/b.tar.gz"):
        with pytest.raises(RunFolderError):
            pack(folder, tmp_path / out, checkpoints=True)
    with pytest.raises(RunFolderError):
        unpack(tmp_path / "a.tar.gz", folder)


def made(path: Path, *members: tarfile.TarInfo) -> Path:
    """An archive of empty members, as somebody else may make one."""
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member)
    return path


def member(name: str, **changes: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(info, key, value)
    return info


ESCAPES = [
    member("../out"),
    member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    member("link", type=tarfile.LNKTYPE, linkname="../out"),
]


@pytest.mark.parametrize("bad", ESCAPES, ids=lambda each: f"{each.name} {each.type!r}")
def test_nothing_gets_out_of_the_folder(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    archive = made(tmp_path / "a.tar.gz", bad)
    with pytest.raises(DataError):
        unpack(archive, tmp_path / "in" / "new")
    assert {path.name for path in tmp_path.rglob("*")} <= {"a.tar.gz", "in"}
    unpack(made(archive, member(f"{tmp_path}/out")), tmp_path / "in" / "new")  # an absolute name loses its root
    assert not (tmp_path / "out").exists()


def test_more_bytes_than_the_limit(tmp_path: Path) -> None:
    """Declared in the header; a bomb is refused before it is unpacked."""
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(member("a", size=GIB + 1).tobuf()))
    with pytest.raises(DataError, match="more than 1 GiB, the limit; nothing is unpacked"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_damage_is_one_line(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "a.tar.gz", checkpoints=True)
    whole = (tmp_path / "a.tar.gz").read_bytes()
    half = len(whole) // 2
    for damaged in (whole[:half], whole[:-9], whole[:-6] + bytes(6), b"no archive"):
        (tmp_path / "a.tar.gz").write_bytes(damaged)
        with pytest.raises(DataError):
            unpack(tmp_path / "a.tar.gz", tmp_path / "new")
        assert not (tmp_path / "new").exists()
