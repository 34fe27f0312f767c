"""Layers of configuration and where every value in them came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "DEFAULT",
    "OVERRIDE",
    "REPLACE_MARKER",
    "Branch",
    "Leaf",
    "branch_of",
    "origins_of",
    "overlay",
    "values_of",
]

OVERRIDE = "override"
"""Origin of a value given on the command line."""

DEFAULT = "default"
"""Origin of a value that neither a file nor the command line gave."""

REPLACE_MARKER = "_override_"
"""A section with this key set to true replaces the inherited section instead of merging into it."""


@dataclass(frozen=True)
class Leaf:
    """A value that is no mapping."""

    value: object
    origin: str


@dataclass(frozen=True)
class Branch:
    """A mapping."""

    children: dict[str, Branch | Leaf]
    origin: str
    replaces: bool


def branch_of(tree: Mapping[object, object], origin: str) -> Branch:
    """A plain mapping as a layer, every value marked with its origin."""
    children: dict[str, Branch | Leaf] = {}
    for key, value in tree.items():
        if key != REPLACE_MARKER:
            children[str(key)] = _node(value, origin)
    return Branch(children, origin, replaces=tree.get(REPLACE_MARKER) is True)


def _node(value: object, origin: str) -> Branch | Leaf:
    return branch_of(value, origin) if isinstance(value, Mapping) else Leaf(value, origin)


def overlay(base: Branch, layer: Branch) -> Branch:
    """The base with the layer on top: mappings merge, everything else is replaced by the later value.

    A branch of the layer that carries the replace marker takes the place of the base's branch. The marker
    acts once: the result carries none.
    """
    merged = dict(base.children)
    for key, node in layer.children.items():
        below = merged.get(key)
        if isinstance(node, Branch):
            keep = isinstance(below, Branch) and not node.replaces
            start = below if keep and isinstance(below, Branch) else Branch({}, node.origin, replaces=False)
            merged[key] = overlay(start, node)
        else:
            merged[key] = node
    return Branch(merged, layer.origin, replaces=False)


def values_of(branch: Branch) -> dict[str, object]:
    """The plain mapping of a layer."""
    return {key: values_of(node) if isinstance(node, Branch) else node.value for key, node in branch.children.items()}


def origins_of(branch: Branch) -> dict[str, str]:
    """Origin by dotted key, of every value and every empty mapping."""
    return dict(_origins(branch, ""))


def _origins(branch: Branch, prefix: str) -> Iterator[tuple[str, str]]:
    for key, node in branch.children.items():
        name = f"{prefix}{key}"
        if isinstance(node, Branch) and node.children:
            yield from _origins(node, f"{name}.")
        else:
            yield name, node.origin
