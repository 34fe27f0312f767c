"""One clear line for a configuration that the schema refuses: got, expected, and where it was set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nemo_uecr.config.keys import Schema, key_of, known_keys, known_names, section_names
from nemo_uecr.config.nearest import nearest_name
from nemo_uecr.config.origins import OVERRIDE

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

__all__ = ["explain", "set_where"]

_SHOWN_VALUE = 60
_SHOWN_OTHERS = 3


def explain(error: ValidationError, origins: Mapping[str, str], path: str, schema: Schema) -> str:
    """The first fault in full and the names of the others.

    An unknown key comes before a missing one, because a misspelt key is both at once.

    Args:
        error: what the schema found.
        origins: origin by dotted key.
        path: the file that was asked for.
        schema: what refused it.

    Returns:
        One line.
    """
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    line = _line(details[0], origins, path, schema)
    others = list(dict.fromkeys(_name(detail["loc"]) for detail in details[1:] if detail["loc"]))
    if others:
        shown = ", ".join(map(_on_one_line, others[:_SHOWN_OTHERS])) + (", ..." if len(others) > _SHOWN_OTHERS else "")
        line += f" (and {len(others)} more: {shown})"
    return line


def _line(detail: ErrorDetails, origins: Mapping[str, str], path: str, schema: Schema) -> str:
    kind, name = detail["type"], _name(detail["loc"])
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "extra_forbidden":
        return f"{_origin(name, origins, path)}: unknown key {_on_one_line(name)}; {_suggestion(name, schema)}"
    expected = _expected(name, schema)
    if kind == "missing" and isinstance(detail["loc"][-1], str):  # else a list is too short
        return f"{path}: missing {name}, expected {expected}; write it in the file or pass {name}=VALUE"
    where = set_where(name, origins, path)
    return f"{_on_one_line(name)}: got {_shown(detail['input'])}, expected {expected} ({where})"


def _name(loc: Sequence[int | str]) -> str:
    """The dotted key of an error's location; list positions belong to the key that holds the list."""
    return ".".join(part for part in loc if isinstance(part, str) and part != "[key]")


def _on_one_line(name: str) -> str:
    """A key as it stands, or spelt out where a sign in it would break the line."""
    return name if name.isprintable() else ascii(name)


def _suggestion(name: str, schema: Schema) -> str:
    return f"the nearest known key is {nearest_name(name, known_names(schema))}"


def _expected(name: str, schema: Schema) -> str:
    if name in section_names(schema):
        keys = [key.rpartition(".")[2] for key in known_keys(schema) if key.startswith(f"{name}.")]
        return f"a section with the keys {', '.join(keys)}"
    key = key_of(name, schema)
    if key is None:
        return "a legal value"
    return key.expectation if key.name == name else key.entries


def _origin(name: str, origins: Mapping[str, str], path: str) -> str:
    if name in origins:
        return origins[name]
    inside = [origin for key, origin in origins.items() if key.startswith(f"{name}.")]
    return inside[0] if inside else path


def set_where(name: str, origins: Mapping[str, str], path: str) -> str:
    """Where a key got its value, in words; the file that was asked for when nothing states the key."""
    origin = _origin(name, origins, path)
    return "set on the command line" if origin == OVERRIDE else f"set in {origin}"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}..."
