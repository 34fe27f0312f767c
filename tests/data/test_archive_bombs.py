"""Archives that would grow: in files, bytes, headers. Each is one line; nothing is unpacked, and in little memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from nemo_uecr.cli.main import entry_point
from nemo_uecr.data.archive import FORMAT, INDEX, MOST_FILES, MOST_INDEX_BYTES
from nemo_uecr.data.unpacking import GIB, MOST_READ_BYTES, unpack
from nemo_uecr.errors import DataError

ONE_BYTE = hashlib.sha256(b"1").hexdigest()
MOST_MEMORY_BYTES = 24 << 20


def header(name: str, size: int, *, kind: bytes = tarfile.REGTYPE, pax: dict[str, str] | None = None) -> bytes:
    """A header as it stands in an archive, which nothing needs to follow."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.pax_headers = size, kind, pax or {}
    return info.tobuf(tarfile.GNU_FORMAT if pax is None else tarfile.PAX_FORMAT)


def plain(name: str, content: bytes) -> bytes:
    return header(name, len(content)) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def index(names: Sequence[str]) -> bytes:
    return plain(INDEX, json.dumps({"format": FORMAT, "files": dict.fromkeys(names, ONE_BYTE)}).encode())


def zeros(mib: int) -> bytes:
    """Packed: gzip files may follow each other."""
    return gzip.compress(bytes(1 << 20)) * mib


def refusal(tmp_path: Path, *packed: bytes) -> str:
    """The one line for an archive, which took little memory and left nothing behind."""
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(b"".join(packed))
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as error:
            unpack(archive, tmp_path / "new", max_gib=1)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY_BYTES
    finally:
        tracemalloc.stop()
    assert [path.name for path in tmp_path.rglob("*")] == ["a.tar.gz"]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_more_bytes_than_the_limit(tmp_path: Path) -> None:
    """1 GiB and one byte, all of it really there: 1 MiB of zeros packs into a thousandth."""
    tar = index(["a", "b"]) + plain("a", b"1") + header("b", GIB)
    said = refusal(tmp_path, gzip.compress(tar), zeros(1024))
    assert "its files take more than 1 GiB, the limit; nothing is unpacked" in said
    assert said.endswith("give a higher --max-gib")


def test_the_limit_is_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tar = index(["a"]) + header("a", 64 * GIB + 1)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar))
    words = ["unpack", str(tmp_path / "a.tar.gz"), str(tmp_path / "new")]
    assert entry_point(words) == 2
    assert "more than 64 GiB, the limit" in capsys.readouterr().err
    assert entry_point([*words, "--max-gib", "65"]) == 2
    assert "unexpected end of data" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_a_size_that_is_declared_and_not_there(tmp_path: Path) -> None:
    said = refusal(tmp_path, gzip.compress(index(["a"]) + header("a", GIB) + b"1"))
    assert "not a readable archive (unexpected end of data)" in said


@pytest.mark.parametrize("size", [8 << 40, 1000])
def test_a_file_of_holes(tmp_path: Path, size: int) -> None:
    """Sparse: 8 TiB, or 1000 bytes, of which the archive holds none."""
    holes = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(size)}
    assert "'a' is no plain file" in refusal(tmp_path, gzip.compress(index(["a"]) + header("a", 0, pax=holes)))


def test_more_files_than_the_limit(tmp_path: Path) -> None:
    names = [f"{number:x}" for number in range(MOST_FILES + 1)]
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(index(names), 1))
    with pytest.raises(DataError, match=f"has {MOST_FILES + 1} files; expected at most {MOST_FILES}"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "new", max_gib=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_files_that_no_index_names(tmp_path: Path) -> None:
    many = b"".join(plain(f"{number:x}", b"1") for number in range(3000))
    assert "'0' is not in the index once" in refusal(tmp_path, gzip.compress(index([]) + many))


def test_an_index_without_end(tmp_path: Path) -> None:
    said = refusal(tmp_path, gzip.compress(header(INDEX, MOST_INDEX_BYTES + 1)), zeros(64))
    assert f"{INDEX} has {MOST_INDEX_BYTES + 1} bytes; expected at most {MOST_INDEX_BYTES}" in said


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize("size", [512 << 20, -512])
def test_a_header_without_end(tmp_path: Path, kind: bytes, size: int) -> None:
    """The tar reader would take all of it at once."""
    said = refusal(tmp_path, gzip.compress(index(["a"]) + header("a", size, kind=kind)), zeros(512))
    assert f"a header of {size} bytes, at most {MOST_READ_BYTES} are read" in said


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_large_headers_of_many_files_are_not_kept(tmp_path: Path, kind: bytes) -> None:
    """600 of 60 kB, each within the limit: 36 MB if the tar reader kept them."""
    names, nothing = [f"f{number}" for number in range(600)], hashlib.sha256(b"").hexdigest()
    head = plain(INDEX, json.dumps({"format": FORMAT, "files": dict.fromkeys(names, nothing)}).encode())

    def record(number: int) -> bytes:
        key = "comment" if kind == tarfile.XHDTYPE else f"comment{number:03d}"
        content = f"60000 {key}=".encode().ljust(59_999, b"A") + b"\n"
        return header("p", len(content), kind=kind) + content + bytes(-len(content) % tarfile.BLOCKSIZE)

    with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as packed:
        packed.write(head)
        for number, name in enumerate(names):
            packed.write(record(number) + header(name, 0))
    tracemalloc.start()
    try:
        assert unpack(tmp_path / "a.tar.gz", tmp_path / "new", max_gib=1) == 600
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "numbers",
    [
        {"GNU.sparse.map": "x"},
        {"GNU.sparse.map": "9" * 5000},
        {"GNU.sparse.map": "0,1", "GNU.sparse.size": "x"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x"},
        {"GNU.sparse.realsize": ""},
    ],
)
def test_a_number_in_a_header_that_is_none(numbers: dict[str, str], tmp_path: Path) -> None:
    said = refusal(tmp_path, gzip.compress(index(["a"]) + header("a", 0, pax=numbers)))
    assert "not a readable archive" in said or "'a' is no plain file" in said


def test_a_header_of_a_megabyte(tmp_path: Path) -> None:
    large = header("p", 1 << 20, kind=tarfile.XHDTYPE) + bytes(1 << 20)
    assert "a header of 1048576 bytes" in refusal(tmp_path, gzip.compress(index(["a"]) + large + plain("a", b"1")))


@pytest.mark.parametrize(
    "after",
    [gzip.compress(b"x" * 512), gzip.compress(bytes(512) + b"x"), gzip.compress(bytes(1 << 20)), b"junk"],
    ids=["no header", "behind a block of zeros", "zeros without end", "no gzip"],
)
def test_what_follows_the_last_file(tmp_path: Path, after: bytes) -> None:
    assert "not a readable archive" in refusal(tmp_path, gzip.compress(index(["a"]) + plain("a", b"1")), after)


def test_the_checksum_at_the_end_is_compared(tmp_path: Path) -> None:
    packed = gzip.compress(index(["a"]) + plain("a", b"1") + bytes(1024))
    wrong = packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:]
    assert "CRC check failed" in refusal(tmp_path, wrong)


def test_headers_without_end(tmp_path: Path) -> None:
    """Of each a header of the next: the tar reader calls itself."""
    said = refusal(tmp_path, gzip.compress(index(["a"]) + header("a", 0, kind=tarfile.XHDTYPE) * 5000))
    assert "not a readable archive (maximum recursion depth exceeded" in said


def test_a_size_below_zero(tmp_path: Path) -> None:
    """By which the tar reader would step back, for ever."""
    said = refusal(tmp_path, gzip.compress(index(["a"]) + header("a", -1024)))
    assert "'a' is no plain file" in said


def test_what_is_within_the_limits_is_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(gzip.compress(index(["a", "x" * 200]) + plain("a", b"1") + long_named("x" * 200)))
    assert unpack(archive, tmp_path / "new", max_gib=1) == 2
    assert (tmp_path / "new" / ("x" * 200)).read_bytes() == b"1"


def long_named(name: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo(name)
        info.size = 1
        archive.addfile(info, io.BytesIO(b"1"))
    return content.getvalue()
