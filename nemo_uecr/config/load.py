"""Files and overrides to one validated configuration, with the origin of every value."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Generic, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from nemo_uecr.config.dotted import flattened
from nemo_uecr.config.files import read_chain
from nemo_uecr.config.messages import explain, set_where
from nemo_uecr.config.origins import DEFAULT, origins_of, overlay, values_of
from nemo_uecr.config.overrides import override_layers
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import ConfigError

__all__ = [
    "Loaded",
    "LoadedConfig",
    "dump_config",
    "escaped",
    "flat_values",
    "load_as",
    "load_config",
    "register_resolvers",
    "stated_values",
]

_MISSING = "???"

#: `${` with the backslashes before it, each of which OmegaConf reads as an escape there and nowhere else.
_INTERPOLATION = re.compile(r"(\\*)\$\{")

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A validated configuration and where it came from."""

    config: C
    """Every value, resolved."""

    origins: dict[str, str]
    """By dotted key: the file as the user wrote it, `override`, or `default`."""


LoadedConfig = Loaded[Config]


def load_config(path: str | os.PathLike[str], overrides: Sequence[str]) -> LoadedConfig:
    """The configuration of a run of the local back end; see `load_as`."""
    return load_as(Config, path, overrides)


def load_as(schema: type[C], path: str | os.PathLike[str], overrides: Sequence[str]) -> Loaded[C]:
    """Read a configuration file with what it inherits, apply the overrides, resolve and validate.

    Args:
        schema: the back end's whole configuration.
        path: YAML file.
        overrides: `dotted.key=value` texts of the command line; may be empty.

    Returns:
        The configuration with the origin of every key.

    Raises:
        ConfigError: with one line that says what was got, what was expected and where it was set.
    """
    shown = os.fspath(path)
    values, stated = stated_values(schema, shown, overrides)
    try:
        config = schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, stated, shown, schema)) from error
    return Loaded(config, {key: stated.get(key, DEFAULT) for key in flat_values(config)})


def stated_values(
    schema: type[BaseModel], path: str, overrides: Sequence[str]
) -> tuple[dict[str, object], dict[str, str]]:
    """Every stated value, resolved but not validated, with the origin of each; values yet to be given are absent."""
    merged = reduce(overlay, override_layers(overrides, schema), read_chain(path))
    stated = origins_of(merged)
    return _resolved(values_of(merged), stated, path), stated


def dump_config(config: BaseModel) -> str:
    """The complete configuration as YAML; `load_config` of it gives the same configuration back."""
    text: str = OmegaConf.to_yaml(OmegaConf.create(escaped(config.model_dump(mode="json"))))
    return text


def flat_values(config: BaseModel) -> dict[str, object]:
    """Every value by dotted key, in the order of the schema; lists and empty mappings are values."""
    return flattened(config.model_dump(mode="json"))


def register_resolvers() -> None:
    """Make `${mul:a,b}`, `${div:a,b}` and `${max:a,b}` usable, as in NeMo-RL's files."""
    # OmegaConf 2.4 warns about `register_new_resolver`; in 2.3 `register_resolver` is an older, weaker function.
    current = "use_cache" in inspect.signature(OmegaConf.register_resolver).parameters
    register = OmegaConf.register_resolver if current else OmegaConf.register_new_resolver
    resolvers = {"mul": lambda a, b: a * b, "div": lambda a, b: a / b, "max": lambda a, b: max(a, b)}
    for name, function in resolvers.items():
        if not OmegaConf.has_resolver(name):
            register(name, function)


def _resolved(values: dict[str, object], origins: Mapping[str, str], path: str) -> dict[str, object]:
    register_resolvers()
    try:
        plain = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or "a value")
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}: {reason} ({set_where(key, origins, path)})") from error
    return _without_missing(plain)


def _without_missing(tree: Mapping[str, object]) -> dict[str, object]:
    """Drop `???`, OmegaConf's mark for a value that a later file must give."""
    return {
        key: _without_missing(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if value != _MISSING
    }


def escaped(tree: Mapping[str, object]) -> dict[str, object]:
    """Keep `${` in a text from being read as an interpolation, and backslashes before it as they are."""
    return {
        key: escaped(value)
        if isinstance(value, Mapping)
        else _INTERPOLATION.sub(r"\1\1\\${", value)
        if isinstance(value, str)
        else value
        for key, value in tree.items()
    }
