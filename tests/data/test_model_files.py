"""Files of somebody else's model folder: what is no file, or too large for one, is not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nemo_uecr.data.model_files import MOST_BYTES, read_object
from nemo_uecr.errors import DataError


def test_a_device_is_not_read() -> None:
    with pytest.raises(DataError, match=r"/dev/null: cannot be read \(no such file\)"):
        read_object(Path("/dev/null"))


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # of holes: it takes no room
    with pytest.raises(DataError, match=f"{MOST_BYTES + 1} bytes; expected {MOST_BYTES} at most"):
        read_object(path)
