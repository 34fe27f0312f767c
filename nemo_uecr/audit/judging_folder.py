"""The folder of a blinded judgement: what the judge gets, and the key, without which no verdict can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_uecr.data.atomic import replace_file
from nemo_uecr.errors import DataError

KEY = "key.jsonl"


def write_judging(
    folder: Path, shown_as: str, shown: Sequence[Mapping[str, object]], key: Sequence[Mapping[str, object]]
) -> None:
    """Write what the judge gets as ``shown_as``, and the key beside it.

    Raises:
        DataError: If the folder has the key of another judgement, or what another one showed.
    """
    if _differs(folder / KEY, _lines(key)):
        raise DataError(f"{folder / KEY} is the key to verdicts on other questions; name another folder")
    if _differs(folder / shown_as, _lines(shown)):
        raise DataError(f"{folder / shown_as} shows another judgement's questions; name another folder")
    replace_file(folder / shown_as, _lines(shown))
    replace_file(folder / KEY, _lines(key))


def _differs(path: Path, content: bytes) -> bool:
    """Whether there is something else; no more of it is read than the content has.

    Raises:
        DataError: If it is a pipe, a device, a folder, or a link to one or to nothing.
    """
    if not path.is_file():
        if path.exists() or path.is_symlink():
            raise DataError(f"{path} is no regular file; name another folder")
        return False
    return path.stat().st_size != len(content) or path.read_bytes() != content


def _lines(rows: Sequence[Mapping[str, object]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
