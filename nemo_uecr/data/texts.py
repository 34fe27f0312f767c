"""Fields of a data set as texts: what can be shown and written, and numbers as people write them."""

from __future__ import annotations

import math
import re
import unicodedata

#: Unicode categories without anything to see: controls, format characters (a zero-width space), separators.
INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
_BOX = re.compile(r"\\boxed\s*\{([^{}]*)\}")


def usable(text: str) -> bool:
    """Whether a text has a visible character and can be written as UTF-8 (JSON can spell a lone surrogate)."""
    kinds = {unicodedata.category(character) for character in set(text)}
    return "Cs" not in kinds and bool(kinds - INVISIBLE)


def usable_text(value: object) -> bool:
    """Whether a value is a text that can be shown and written."""
    return isinstance(value, str) and usable(value)


def empty_box(answer: str) -> bool:
    r"""Whether an answer is a ``\boxed{}`` around nothing that can be seen; no response could match it."""
    found = _BOX.fullmatch(answer.strip())
    return found is not None and not usable(found[1])


def text_of(value: object) -> str | None:
    """A text or number as text (27.0 as "27"); None for anything else, an empty text, or one that is no Unicode."""
    if isinstance(value, str):
        return value.strip() if usable(value) else None
    return number_text(value)


def number_text(value: object) -> str | None:
    """A finite number as text (27.0 as "27"); None for anything else. Python reads NaN and Infinity, no JSON."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return None
    return str(int(value)) if value.is_integer() else repr(value)
