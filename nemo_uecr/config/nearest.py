"""The known name that a misspelt one most probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

__all__ = ["nearest_name"]


def nearest_name(wrong: str, known: Iterable[str]) -> str:
    """The known name most similar to a wrong one.

    Args:
        wrong: what was written.
        known: every legal name; at least one.

    Returns:
        The most similar name; the first in alphabetical order among equals.
    """
    return max(sorted(known), key=lambda name: SequenceMatcher(None, wrong.lower(), name.lower()).ratio())
