"""A configuration as YAML with the origin of every value in a comment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import yaml
from pydantic import BaseModel

from nemo_uecr.config.load import escaped

__all__ = ["annotated_yaml"]

_COLUMN = 48


def annotated_yaml(config: BaseModel, origins: Mapping[str, str]) -> str:
    """The complete configuration; the text is a valid configuration file itself.

    Args:
        config: the validated configuration.
        origins: origin by dotted key.

    Returns:
        YAML, one key a line, in the order of the schema.
    """
    return "".join(f"{line}\n" for line in _lines(escaped(config.model_dump(mode="json")), origins, ()))


def _lines(tree: Mapping[str, object], origins: Mapping[str, str], path: tuple[str, ...]) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in tree.items():
        inside = (*path, key)
        label = f"{indent}{_scalar(key)}:"
        if isinstance(value, Mapping) and value:
            yield label
            yield from _lines(value, origins, inside)
        else:
            yield f"{f'{label} {_scalar(value)}':<{_COLUMN}}  # {origins['.'.join(inside)]}"


def _scalar(value: object) -> str:
    """A value on one line; `width` keeps the dumper from folding long texts."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    if "\n" in text.rstrip("\n").removesuffix("\n..."):
        text = yaml.safe_dump(value, default_style='"', width=float("inf"), allow_unicode=True)
    return text.rstrip("\n").removesuffix("\n...")
