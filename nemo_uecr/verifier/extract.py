r"""Finds the final answer: the content of the last complete ``\boxed{...}``."""

from __future__ import annotations

import re

#: Longest answer that is looked at. A real one is short.
MAX_ANSWER_CHARS = 2_000
#: A run of backslashes, perhaps with the rest of the marker, or a brace. More than one backslash before "boxed" is a
#: model's over-escaping. The run is taken whole, so that a megabyte of them is read once.
_PIECE = re.compile(r"(?P<escape>\\+)(?P<marker>boxed\{)?|[{}]")


def last_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}`` whose braces close; None when there is none.

    Braces nest, and an escaped brace (``\{``) does not count. An unclosed last box is skipped in favour of an earlier
    complete one: a response cut off while it repeats its answer has still given it. One pass over the text, so a
    megabyte of braces costs no more than a megabyte of words.
    """
    open_braces: list[int | None] = []  # where the content of an open box begins; None for a plain brace
    last: tuple[int, int] | None = None
    escaped = -1  # position of a character that a backslash has taken
    for piece in _PIECE.finditer(text):
        if piece["marker"] is not None:
            open_braces.append(piece.end())
        elif piece["escape"] is not None:
            escaped = piece.end() if len(piece["escape"]) % 2 else -1
        elif piece.start() == escaped:
            continue
        elif piece[0] == "{":
            open_braces.append(None)
        elif open_braces:
            start = open_braces.pop()
            if start is None or piece.start() - start > MAX_ANSWER_CHARS:
                continue
            if last is None or start > last[0]:
                last = (start, piece.start())
    return None if last is None else text[last[0] : last[1]].strip()
