"""The texts beside a saved batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError
from nemo_uecr.files import read_object

NEEDED = ("problem", "question", "answer", "response")


def saved_texts(path: Path, *, responses: int) -> list[dict[str, Any]]:
    """One object a response of the batch, in the order of its tensors.

    Args:
        path: the file.
        responses: how many the tensors have.

    Raises:
        DataError: If the file cannot be read, has another number of responses, or one that lacks a text.
    """
    rows = read_object(path).get("responses")
    if not isinstance(rows, list) or len(rows) != responses:
        got = f"{len(rows)} responses" if isinstance(rows, list) else "no list of responses"
        raise DataError(f"{path} has {got}; expected the {responses} of the batch beside it, as the run wrote them")
    for number, row in enumerate(rows):
        lost = [name for name in NEEDED if not isinstance(row, dict) or not isinstance(row.get(name), str)]
        if lost:
            raise DataError(f"{path}: response {number} has no text {lost[0]!r}; expected the file as the run wrote it")
    return rows
