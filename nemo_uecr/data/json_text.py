"""The one place that turns JSON of a file into Python: whatever is wrong with it ends in a `ValueError` of one line.

Python alone takes NaN and Infinity for JSON, guesses UTF-16, and answers deep nesting with a `RecursionError`, which no
reader of files expects.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nemo_uecr.errors import DataError

Pairs = Callable[[list[tuple[str, Any]]], dict[str, Any]]


class MalformedJsonError(ValueError):
    """A text that Python reads, or fails to read in its own way, and that is no JSON."""


def decoded(content: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        ValueError: what is wrong, in one line: cut off, no UTF-8, nested too deep, a number that is none of JSON's.
    """
    try:
        return json.loads(_text(content), parse_constant=_refuse)
    except RecursionError as error:
        raise MalformedJsonError("it is nested too deep") from error


def read_own_object(path: Path) -> dict[str, Any]:
    """The one JSON object of a file that this package writes; `model_files` reads those of a model.

    Raises:
        DataError: If it is cut off, or no object.
    """
    try:
        found = decoded(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: malformed JSON ({error}); the file is truncated or corrupt") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: got {type(found).__name__}; expected one JSON object")
    return found


def decoded_row(content: bytes, pairs: Pairs) -> Any:
    """The value of a line of a data set, whose fields are judged one by one: NaN is left to who reads the field.

    Args:
        content: the line in UTF-8.
        pairs: makes the objects, and may refuse one.

    Raises:
        ValueError: what is wrong, in one line; what ``pairs`` raises.
    """
    try:
        return json.loads(_text(content), object_pairs_hook=pairs)
    except RecursionError as error:
        raise MalformedJsonError("it is nested too deep") from error


def _text(content: bytes) -> str:
    """The text, without a mark before it; what Python says of the mark is advice to a programmer."""
    if content.startswith(codecs.BOM_UTF8):
        raise MalformedJsonError("a byte-order mark stands before it: save the file as UTF-8 without one")
    return content.decode("utf-8")


def _refuse(constant: str) -> None:
    raise MalformedJsonError(f"{constant} is no number of JSON")
