"""Instructions that would end or stop the process, or change its classes, are found before a pickle is read."""

from __future__ import annotations

import pickle
import pickletools
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_uecr.checkpoint.metadata_pickle import read_metadata
from nemo_uecr.checkpoint.pickle_scan import MOST, check_instructions
from nemo_uecr.errors import CheckpointError

LEVELS = 1_000_000
READ = "import sys; from pathlib import Path; from nemo_uecr.checkpoint.metadata_pickle import read_metadata; "
DEEP_KEYS = {
    "on the stack": b"})" + LEVELS * b"\x85" + b"Ns",
    "through the memo": b"})\x94" + LEVELS // 2 * b"0h\x00\x85q\x00" + b"Ns",
    "with a mark": b"}" + LEVELS * b"(" + LEVELS * b"t" + b"Ns",
    "in a set": b"\x8f()" + LEVELS * b"\x85" + b"\x90",
}
trees = st.recursive(
    st.one_of(st.none(), st.integers(-(2**60), 2**60), st.text(max_size=300), st.floats(), st.just(())),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, min_size=1, max_size=4).map(tuple),
        st.dictionaries(st.integers(-(2**60), 2**60), inner, max_size=3),
    ),
)


def depth(tree: object) -> int:
    """Tuples within one another, whatever stands between them; an empty one holds nothing."""
    if isinstance(tree, dict):
        return max(map(depth, tree.values()), default=0)
    if isinstance(tree, list | tuple):
        return max(map(depth, tree), default=0) + (isinstance(tree, tuple) and tree != ())
    return 0


def tuples(count: int) -> object:
    tree: object = None
    for _ in range(count):
        tree = (tree,)
    return tree


def accepts(content: bytes) -> bool:
    try:
        check_instructions(content)
    except pickle.UnpicklingError:
        return False
    return True


@pytest.mark.parametrize("kind", DEEP_KEYS)
def test_a_deep_key_is_one_line_and_ends_no_process(kind: str, tmp_path: Path) -> None:
    """In a process of its own, which the key would end with SIGSEGV."""
    path = tmp_path / ".metadata"
    path.write_bytes(b"\x80\x04" + DEEP_KEYS[kind] + b".")
    done = subprocess.run([sys.executable, "-c", READ + "read_metadata(Path(sys.argv[1]))", path], stderr=-1, text=True)
    assert done.returncode == 1
    said = f"{path}: unreadable (it has more than {MOST} tuples within one another); the checkpoint is corrupt"
    assert said in done.stderr.splitlines()[-1]


@given(tree=trees, extra=st.integers(MOST - 4, MOST + 1), protocol=st.integers(0, 5))
def test_the_depth_is_that_of_the_object(tree: object, extra: int, protocol: int) -> None:
    """Around a tree of any kind lie so many tuples that some are refused and some are not."""
    for _ in range(extra):
        tree = (tree,)
    assert accepts(pickle.dumps(tree, protocol)) == (depth(tree) <= MOST)


def test_what_was_discarded_does_not_count() -> None:
    """POP takes a value or a mark, POP_MARK all above the mark, DUP doubles the last."""
    deep, flat = pickle.dumps(tuples(MOST), 4)[2:-1], b"\x80\x04"
    assert accepts(flat + deep + b"0)\x85.")
    assert accepts(flat + b")(" + deep + b"1\x85.")
    assert not accepts(flat + deep + b"(0\x85.")
    assert not accepts(flat + deep + b"2\x86.")


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        (b"cpathlib\nPurePosixPath\n", b""),
        (b"\x8c\x07pathlib\x8c\x0dPurePosixPath\x93", b""),
        (b"cpathlib\nPurePosixPath\n", b"\x940h\x00"),
        (b"cpathlib\nPurePosixPath\n", b"2"),
    ],
)
def test_no_class_is_changed(name: bytes, reached: bytes, tmp_path: Path) -> None:
    path = tmp_path / ".metadata"
    path.write_bytes(b"\x80\x04" + name + reached + b"N}X\x05\x00\x00\x00addedNs\x86b.")
    with pytest.raises(CheckpointError, match=r"unreadable .it changes a class or a function.; the checkpoint"):
        read_metadata(path)
    assert not hasattr(PurePosixPath, "added")


def test_a_key_that_is_hashed_for_ever(tmp_path: Path) -> None:
    """Fourteen levels of three references each are five million parts."""
    path = tmp_path / ".metadata"
    levels = b"".join(b"(" + 3 * (b"h" + bytes([level])) + b"t\x940" for level in range(14))
    path.write_bytes(b"\x80\x04N\x940" + levels + b"}h\x0eNs.")
    with pytest.raises(CheckpointError, match=r"it has tuples of more than 1,000,000 parts"):
        read_metadata(path)


def test_a_number_of_the_memo_that_would_fill_the_memory() -> None:
    assert accepts(b"\x80\x04Nr\x01\x00\x00\x00.")
    assert not accepts(b"\x80\x04Nr\x00\x00\x00\x04.")
    assert not accepts(b"\x80\x04Np67108864\n.")


def test_keys_that_all_have_one_hash() -> None:
    assert accepts(pickle.dumps({2**61 - 2: None}))
    for protocol in range(5):
        assert not accepts(pickle.dumps({3 * (2**61 - 1): None}, protocol))
        assert not accepts(pickle.dumps({1 - 2**61: None}, protocol))


def test_a_megabyte_takes_about_as_long_as_its_reading() -> None:
    records = [(f"layer.{number}", (number, 0), {"offset": number}) for number in range(20_000)]
    content = pickle.dumps(records, 4)
    began = time.process_time()
    for _ in pickletools.genops(content):
        pass
    walk = time.process_time() - began
    began = time.process_time()
    check_instructions(content)
    assert time.process_time() - began < 4 * walk + 0.1


def test_a_pickle_that_refers_to_nothing_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / ".metadata"
    for content in (b"", b"\x80\x04", b"h\x05.", b"t.", b"\xff", b"X\xff\xff\xff\x7fa."):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"unreadable .its instructions end too early or refer to nothing"):
            read_metadata(path)
