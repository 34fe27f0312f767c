"""A tree of mappings as one mapping with dotted keys."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["flattened"]


def flattened(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Every value by dotted key, in the order of the tree; lists and empty mappings are values."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{name}.")
        else:
            flat[name] = value
    return flat
