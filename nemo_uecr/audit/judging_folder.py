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
        DataError: If the folder has the key of another judgement.
    """
    place, content = folder / KEY, _lines(key)
    if place.exists() and place.read_bytes() != content:
        raise DataError(f"{place} is the key to verdicts on other questions; name another folder")
    replace_file(folder / shown_as, _lines(shown))
    replace_file(place, content)


def _lines(rows: Sequence[Mapping[str, object]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
