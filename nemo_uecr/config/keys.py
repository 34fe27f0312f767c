"""Every legal key of the configuration with its type in words, read off the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nemo_uecr.config.schema import Config

__all__ = ["Key", "Node", "Schema", "is_known", "key_of", "known_keys", "known_names", "section_names"]

Node = Mapping[str, object]

#: A back end's whole configuration.
Schema = type[BaseModel]


@dataclass(frozen=True)
class Key:
    """One legal key."""

    name: str
    """Dotted name."""

    expectation: str
    """Type and limits in words, as an error message says them."""

    meaning: str
    """What the key does: the docstring under its field."""

    required: bool
    """Whether a file or an override must state it."""

    default: object
    """The value where nothing states it; None for a required key."""

    takes_text: bool
    """Whether the value is free text, so that `key=123` on the command line means the text 123."""

    free_mapping: bool
    """Whether the key holds names of the user's own choice."""

    entries: str
    """What an entry of such a key expects, in words; empty elsewhere."""


@cache
def known_keys(schema: Schema = Config) -> dict[str, Key]:
    """Every legal key by dotted name, in the order of the schema."""
    return {key.name: key for key in _keys_of(schema, "")}


@cache
def section_names(schema: Schema = Config) -> dict[str, str]:
    """Every section by dotted name with the first sentence about it, in the order of the schema."""
    return dict(_sections_of(schema, ""))


def known_names(schema: Schema = Config) -> list[str]:
    """Sections and keys together: everything a misspelt name can have meant."""
    return [*section_names(schema), *known_keys(schema)]


def is_known(name: str, schema: Schema = Config) -> bool:
    """Whether a dotted name is a section, a key, or an entry of a free mapping."""
    return name in section_names(schema) or key_of(name, schema) is not None


def key_of(name: str, schema: Schema = Config) -> Key | None:
    """The key that a dotted name is, or is an entry of; None for a section or an unknown name."""
    keys = known_keys(schema)
    if name in keys:
        return keys[name]
    mappings = (key for key in keys.values() if key.free_mapping)
    return next((key for key in mappings if name.startswith(f"{key.name}.")), None)


def _sections_of(schema: Schema, prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in schema.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield f"{prefix}{name}", (inner.__doc__ or "").strip()
            yield from _sections_of(inner, f"{prefix}{name}.")


def _keys_of(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _keys_of(annotation, f"{prefix}{name}.")
        else:
            yield _key(f"{prefix}{name}", field, schema["properties"][name])


def _key(name: str, field: FieldInfo, node: Node) -> Key:
    options = _options(node)
    kinds = {option.get("type") for option in options if not {"enum", "const"} & set(option)}
    return Key(
        name=name,
        expectation=", or ".join(_words(option) for option in options),
        meaning=" ".join((field.description or "").split()),
        required=field.is_required(),
        default=None if field.is_required() else field.default,
        takes_text="string" in kinds,
        free_mapping="object" in kinds,
        entries=next((_words(_entry(option)) for option in options if option.get("type") == "object"), ""),
    )


def _options(node: Node) -> list[Node]:
    options = node.get("anyOf")
    return list(options) if isinstance(options, list) else [node]


def _words(node: Node) -> str:
    """A JSON-schema node in words: `an integer >= 1`."""
    if "const" in node:
        return str(node["const"])
    choices = node.get("enum")
    if isinstance(choices, list):
        return "one of " + ", ".join(str(choice) for choice in choices)
    kind = node.get("type")
    if kind == "array":
        items = node["prefixItems"]
        assert isinstance(items, list)  # noqa: S101  the schema's only list kind is the fixed-length one
        return f"a list of {len(items)}, each {_words(items[0])}"
    if kind == "object":
        return "a mapping of names to " + {"string": "texts", "number": "numbers"}[str(_entry(node)["type"])]
    words = {
        "integer": "an integer",
        "number": "a number",
        "string": "a text",
        "boolean": "true or false",
        "null": "null",
    }[str(kind)]
    return words + _limits(node)


def _entry(node: Node) -> Node:
    inner = node["additionalProperties"]
    assert isinstance(inner, dict)  # noqa: S101  the schema's free mappings say what they map to
    return inner


def _limits(node: Node) -> str:
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {_short(node[name])}" for name, sign in signs.items() if name in node]
    if node.get("minLength") == 1:
        limits.append("that is not empty")
    return " " + " and ".join(limits) if limits else ""


def _short(limit: object) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)
