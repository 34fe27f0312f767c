"""Headers of safetensors files: what no tensor can be is refused, also of a dtype whose size is not known here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nemo_uecr.data.weight_files import BITS, read_header
from nemo_uecr.errors import DataError

UNMEASURED = "F8_E8M0"


def written(path: Path, **tensors: object) -> Path:
    """A file with this header, and four bytes of tensors."""
    text = json.dumps(tensors).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    return path


def entry(dtype: str, shape: object, offsets: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_dtype_of_unknown_size_is_read(tmp_path: Path) -> None:
    assert UNMEASURED not in BITS
    path = written(tmp_path / "a", sound=entry("F32", [1], [0, 4]), other=entry(UNMEASURED, [4], [0, 4]))
    assert {name: (tensor.shape, tensor.end) for name, tensor in read_header(path).items()} == {
        "sound": ((1,), 4), "other": ((4,), 4),
    }  # fmt: skip


@pytest.mark.parametrize("offsets", [[4, 0], [4], [0, 4, 4], [0, "4"], [-4, 0], [False, 4], [0, 2**63], 4, None])
def test_offsets_that_are_none(offsets: object, tmp_path: Path) -> None:
    """Of an unknown size no product of the shape tells; the end of the other tensor is that of the file."""
    path = written(tmp_path / "a", sound=entry("F32", [1], [0, 4]), odd=entry(UNMEASURED, [4], offsets))
    with pytest.raises(DataError, match="its header is damaged at 'odd'"):
        read_header(path)


@pytest.mark.parametrize(("shape", "offsets"), [([2], [0, 4]), ([1], [0, 3]), ([0], [0, 4]), ([1, 3], [0, 4])])
def test_a_shape_that_its_bytes_do_not_hold(shape: list[int], offsets: list[int], tmp_path: Path) -> None:
    path = written(tmp_path / "a", sound=entry("F32", [1], [0, 4]), odd=entry("F32", shape, offsets))
    with pytest.raises(DataError, match="its header is damaged at 'odd'"):
        read_header(path)
