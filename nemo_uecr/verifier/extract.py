r"""Finds the final answer: the content of the last complete ``\boxed{...}``."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Longest answer that is looked at. A real one is short.
MAX_ANSWER_CHARS = 2_000
#: A run of backslashes, perhaps with the rest of the marker, or a brace. More than one backslash before "boxed" is a
#: model's over-escaping. The run is taken whole, so that a megabyte of them is read once.
_PIECE = re.compile(r"(?P<escape>\\+)(?P<marker>boxed\{)?|[{}]")


@dataclass(frozen=True)
class _Box:
    """Where a box and its content stand in the text."""

    outer: tuple[int, int]
    inner: tuple[int, int]


def last_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}`` whose braces close; None when there is none.

    Braces nest, and an escaped brace (``\{``) does not count. An unclosed last box is skipped in favour of an earlier
    complete one: a response cut off while it repeats its answer has still given it. A box inside a box with something
    beside it is a part of the outer one's answer. One pass over the text, so a megabyte of braces costs no more than a
    megabyte of words.
    """
    open_braces: list[tuple[int, int] | None] = []  # where an open box and its content begin; None for a plain brace
    last: _Box | None = None
    escaped = -1  # position of a character that a backslash has taken
    for piece in _PIECE.finditer(text):
        if piece["marker"] is not None:
            open_braces.append((piece.start(), piece.end()))
        elif piece["escape"] is not None:
            escaped = piece.end() if len(piece["escape"]) % 2 else -1
        elif piece.start() == escaped:
            continue
        elif piece[0] == "{":
            open_braces.append(None)
        elif open_braces:
            start = open_braces.pop()
            if start is not None and piece.start() - start[1] <= MAX_ANSWER_CHARS:
                last = _closed(text, last, start, piece.start())
    return None if last is None else text[last.inner[0] : last.inner[1]].strip()


def _closed(text: str, last: _Box | None, start: tuple[int, int], end: int) -> _Box:
    """The box that has just closed; where it holds nothing but another box, with that one's content."""
    inner = (start[1], end)
    if last is not None and last.outer[0] >= start[1]:
        beside = text[start[1] : last.outer[0]], text[last.outer[1] : end]
        if not "".join(beside).strip():
            inner = last.inner
    return _Box((start[0], end + 1), inner)
