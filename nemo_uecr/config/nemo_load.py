"""Files and overrides of a NeMo-RL run to one validated configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import reduce

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from nemo_uecr.config.files import read_chain
from nemo_uecr.config.load import register_resolvers
from nemo_uecr.config.nearest import nearest_name
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.origins import OVERRIDE, branch_of, origins_of, overlay, values_of
from nemo_uecr.errors import ConfigError

__all__ = ["backend_of", "load_nemo_config", "nemo_keys", "nemo_values"]

_MISSING = "???"


def backend_of(path: str | os.PathLike[str], overrides: Sequence[str]) -> str | None:
    """The back end that a configuration names, before anything else of it is read; None if it names none.

    Raises:
        ConfigError: a file cannot be read.
    """
    named = [text.partition("=")[2].strip() for text in overrides if text.lstrip("+").startswith("backend=")]
    if named:
        return named[-1]
    backend = values_of(read_chain(os.fspath(path))).get("backend")
    return None if backend is None else str(backend)


def load_nemo_config(path: str | os.PathLike[str], overrides: Sequence[str]) -> NemoConfig:
    """Read a configuration file with what it inherits, apply the overrides, resolve and validate.

    Raises:
        ConfigError: with one line that says what was got, what was expected and where it was set.
    """
    shown = os.fspath(path)
    values, origins = nemo_values(shown, overrides)
    try:
        return NemoConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, origins, shown)) from error


def nemo_values(path: str, overrides: Sequence[str]) -> tuple[dict[str, object], Mapping[str, str]]:
    """Every stated value, resolved but not validated, with the origin of each; values yet to be given are absent."""
    layers = [branch_of(_tree(text), OVERRIDE) for text in overrides]
    merged = reduce(overlay, layers, read_chain(path))
    register_resolvers()
    try:
        plain = OmegaConf.to_container(OmegaConf.create(values_of(merged)), resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: expected a mapping of keys")
    return _given({str(key): value for key, value in plain.items()}), origins_of(merged)


def nemo_keys() -> list[str]:
    """Every legal key by dotted name."""
    return list(_keys(NemoConfig, ""))


def _keys(model: type[BaseModel], prefix: str) -> list[str]:
    names: list[str] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        section = isinstance(inner, type) and issubclass(inner, BaseModel)
        names += _keys(inner, f"{prefix}{name}.") if section else [f"{prefix}{name}"]  # type: ignore[arg-type]
    return names


def _tree(text: str) -> dict[object, object]:
    name, equals, written = text.lstrip("+").partition("=")
    if not equals or not name:
        raise ConfigError(f"override {text!r}: expected key=value, for example train.steps=10")
    legal = nemo_keys()
    if name not in legal:
        raise ConfigError(
            f"override {text!r}: unknown key {name}; the nearest known key is {nearest_name(name, legal)}"
        )
    try:
        value: object = yaml.safe_load(written)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {text!r}: the value is not valid YAML") from error
    if isinstance(value, str):
        value = _number(value)
    first, *rest = name.split(".")
    for part in reversed(rest):
        value = {part: value}
    return {first: value}


def _number(text: str) -> object:
    """`1e-6`, which YAML 1.1 takes for a text."""
    try:
        return float(text) if text[:1] in "+-.0123456789" else text
    except ValueError:
        return text


def _given(tree: Mapping[str, object]) -> dict[str, object]:
    return {
        key: _given(value) if isinstance(value, Mapping) else value for key, value in tree.items() if value != _MISSING
    }


def _explain(error: ValidationError, origins: Mapping[str, str], path: str) -> str:
    details = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    first = details[0]
    name = ".".join(str(part) for part in first["loc"])
    where = f"in {origins[name]}" if name in origins else f"in {path}"
    if first["type"] == "missing":
        line = f"{name}: missing {where}; write {name}=VALUE or state it in the file"
    elif first["type"] == "extra_forbidden":
        line = f"{name}: unknown key {where}; the nearest known key is {nearest_name(name, nemo_keys())}"
    elif first["type"] == "value_error":
        line = first["msg"].removeprefix("Value error, ")
    else:
        line = f"{name}: got {first['input']!r}, {first['msg'].lower()} ({where})"
    return line + (f" (and {len(details) - 1} more)" if len(details) > 1 else "")
