"""`key=value` from the command line."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_uecr.config.keys import Key, Schema, is_known, key_of, known_names
from nemo_uecr.config.nearest import nearest_name
from nemo_uecr.config.old_numbers import refuse_old_numbers
from nemo_uecr.config.origins import OVERRIDE, REPLACE_MARKER, Branch, branch_of
from nemo_uecr.errors import ConfigError

__all__ = ["override_layers"]

_NULLS = {"null", "Null", "NULL", "~"}


def override_layers(overrides: Sequence[str], schema: Schema) -> list[Branch]:
    """One layer an override, in their order; a later one wins.

    `+key=value` and `++key=value`, Hydra's spellings for a key that the files may lack, mean the same as
    `key=value`. A whole mapping of names, `evaluation.benchmarks={...}`, replaces what the files name.

    Args:
        overrides: texts of the form `dotted.key=value`; the value is read as YAML.
        schema: says which keys there are and which of them are texts.

    Returns:
        The layers, every value with the origin `override`.

    Raises:
        ConfigError: no `=`, an unknown key, bytes that are no text, or a value that is no YAML.
    """
    return [_layer(*_parse(text, schema), schema) for text in overrides]


def _layer(name: str, value: object, schema: Schema) -> Branch:
    first, *rest = _parts(name, schema)
    for part in reversed(rest):
        value = {part: value}
    return branch_of({first: value}, OVERRIDE)


def _parse(text: str, schema: Schema) -> tuple[str, object]:
    if not _is_unicode(text):
        raise ConfigError(f"override {text!a}: not UTF-8 text, expected key=value")
    name, equals, written = text.partition("=")
    name = name.strip()
    if name.startswith("+"):
        name = name.removeprefix("+").removeprefix("+")
    if not equals or not name:
        raise ConfigError(f"override {text!r}: expected key=value, for example train.steps=10")
    if not is_known(name, schema):
        nearest = nearest_name(name, known_names(schema))
        raise ConfigError(f"override {text!r}: unknown key {name}; the nearest known key is {nearest}")
    return name, _value(name, written, schema)


def _parts(name: str, schema: Schema) -> list[str]:
    """The path of a name; an entry of a free mapping is one part even where it has dots."""
    key = key_of(name, schema)
    if key is None or key.name == name:
        return name.split(".")
    return [*key.name.split("."), name.removeprefix(f"{key.name}.")]


def _value(name: str, written: str, schema: Schema) -> object:
    key = key_of(name, schema)
    if written == "" or (key is not None and _is_text(key, name)):
        return _text(written)
    try:
        parsed = OmegaConf.from_dotlist([f"value={written}"])
        value: object = OmegaConf.to_container(parsed, resolve=False)["value"]
    except (yaml.YAMLError, OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(f"override {name}={written}: the value is not valid YAML") from error
    refuse_old_numbers(written, f"override {name}={written}")
    if key is not None and key.free_mapping and isinstance(value, dict):
        return {**value, REPLACE_MARKER: True}
    return value


def _is_text(key: Key, name: str) -> bool:
    """Whether the name's value is free text: the key's own, or that of an entry of its mapping."""
    return key.takes_text if key.name == name else key.entries.startswith("a text")


def _is_unicode(text: str) -> bool:
    """Whether every byte of an argument was text; Python passes others on as lone surrogates."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _text(written: str) -> str | None:
    """A text as it is written: a path or a prompt needs no YAML quoting, quotes around it are dropped."""
    if written in _NULLS:
        return None
    quoted = len(written) >= 2 and written[0] in "'\"" and written[-1] == written[0]
    return written[1:-1] if quoted else written
