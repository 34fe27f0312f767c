"""A blinded judgement: what the judge gets, the key that the judge does not get, and the judge's file read with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_uecr.audit.sources import parse_lines, require
from nemo_uecr.errors import DataError
from nemo_uecr.files import replace_file

KEY = "key.jsonl"
Row = Mapping[str, Any]


def blind_name(seed: int, *responses: str) -> str:
    """A name that tells the judge nothing; the same for the same seed and responses."""
    return hashlib.sha256(":".join((str(seed), *responses)).encode()).hexdigest()[:16]


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


def check_judgement(verdicts: Path, key: Path, expected: str) -> None:
    """Refuse a judge's file or a key that is not there.

    Raises:
        DataError: naming it.
    """
    for path in (verdicts, key):
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected {expected}")


def key_rows(key: Path, kind: str, fields: Mapping[str, type]) -> Iterator[tuple[str, Row]]:
    """Place and content of each line of a key; ``kind``, "pair" or "item", is the field with the name of each.

    Raises:
        DataError: naming file and line.
    """
    seen: set[str] = set()
    for place, row in parse_lines(key):
        require(row, {kind: str, **fields}, place)
        _once(row[kind], seen, kind, place)
        yield place, row


def verdict_rows(verdicts: Path, key: Path, kind: str, names: Container[str]) -> Iterator[tuple[str, Row]]:
    """Place and content of each line of a judge's file: of what the key names, each once, and not all of it perhaps.

    Raises:
        DataError: naming file and line, or saying that there is none.
    """
    seen: set[str] = set()
    for place, row in parse_lines(verdicts):
        require(row, {kind: str}, place)
        if row[kind] not in names:
            raise DataError(f"{place}: {kind} {row[kind]!r} is not in {key}; expected the {kind}s of that key")
        _once(row[kind], seen, kind, place)
        yield place, row
    if not seen:
        raise DataError(f"{verdicts} holds no {kind}; expected one a line")


def _once(name: str, seen: set[str], kind: str, place: str) -> None:
    if name in seen:
        raise DataError(f"{place}: {kind} {name!r} stands twice; expected each once")
    seen.add(name)


def _lines(rows: Sequence[Mapping[str, object]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
