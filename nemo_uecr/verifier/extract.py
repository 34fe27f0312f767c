r"""Finds the final answer: the content of the last complete ``\boxed{...}``."""

from __future__ import annotations

MARKER = r"\boxed{"
#: Longest answer that is looked at. A real one is short; a megabyte of braces must not cost a second.
MAX_ANSWER_CHARS = 2_000


def last_boxed(text: str) -> str | None:
    r"""Content of the last ``\boxed{...}`` whose braces close; None when there is none.

    Braces nest, and an escaped brace (``\{``) does not count. An unclosed last box is skipped in favour of an earlier
    complete one: a response cut off while it repeats its answer has still given it.
    """
    start = text.rfind(MARKER)
    while start >= 0:
        content = _balanced(text, start + len(MARKER))
        if content is not None:
            return content.strip()
        start = text.rfind(MARKER, 0, start)
    return None


def _balanced(text: str, start: int) -> str | None:
    depth = 1
    position = start
    end = min(len(text), start + MAX_ANSWER_CHARS)
    while position < end:
        character = text[position]
        if character == "\\":
            position += 2
            continue
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start:position]
        position += 1
    return None
