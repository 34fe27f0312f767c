"""Files and overrides to one validated configuration, with the origin of every value.

`defaults:` in a file names the files that it builds on, as in NeMo-RL: a text or a list, relative to the file that has
it, read depth first, later wins; `_override_: true` in a section replaces the inherited section. Beyond that,
duplicate keys are refused, the marker works at any depth, and a file that inherits itself is an error.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from nemo_uecr.config.keys import Schema, is_known, key_of, known_keys, known_names, section_names
from nemo_uecr.config.methods import nearest_name
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import CheckpointError, ConfigError, RunFolderError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = [
    "DEFAULT",
    "Layer",
    "Loaded",
    "LoadedConfig",
    "annotated_yaml",
    "backend_of",
    "check_same_configuration",
    "dump_config",
    "flat_values",
    "flattened",
    "load_as",
    "load_config",
    "load_nemo",
    "load_nemo_config",
    "overlay",
    "override_layer",
    "read_chain",
    "read_mapping",
    "read_written",
    "stated_values",
    "written_config",
]  # fmt: skip

OVERRIDE = "override"
"""Origin of a value given on the command line."""
DEFAULT = "default"
"""Origin of a value that neither a file nor the command line gave."""
REPLACE_MARKER = "_override_"
#: Keys that a resumed run may change: they alter what is written, not what is trained.
FREE_KEYS = ("train.steps", "telemetry.", "checkpoint.", "run.folder")

_MISSING = "???"
#: `${` with the backslashes before it, each of which OmegaConf reads as an escape there and nowhere else.
_INTERPOLATION = re.compile(r"(\\*)\$\{")
_NULLS = {"null", "Null", "NULL", "~"}
_SHOWN_VALUE, _SHOWN_OTHERS = 60, 3
_COLUMN = 48

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A validated configuration and where it came from."""

    config: C
    """Every value, resolved."""

    origins: dict[str, str]
    """By dotted key: the file as the user wrote it, `override`, or `default`."""


LoadedConfig = Loaded[Config]


@dataclass(frozen=True)
class Layer:
    """Values of files or overrides, and the origin of each by dotted key."""

    values: dict[str, object]
    origins: dict[str, str]


# --- one configuration ---


def load_config(path: str | os.PathLike[str], overrides: Sequence[str]) -> LoadedConfig:
    """The configuration of a run of the local back end; see `load_as`."""
    return load_as(Config, path, overrides)


def load_nemo(path: str | os.PathLike[str], overrides: Sequence[str]) -> Loaded[NemoConfig]:
    """The configuration of a NeMo-RL run with the origin of every value; see `load_as`."""
    return load_as(NemoConfig, path, overrides)


def load_nemo_config(path: str | os.PathLike[str], overrides: Sequence[str]) -> NemoConfig:
    """The configuration of a NeMo-RL run."""
    return load_nemo(path, overrides).config


def backend_of(path: str | os.PathLike[str], overrides: Sequence[str]) -> str | None:
    """The back end that a configuration names, before anything else of it is read; None if it names none."""
    named = [text.partition("=")[2].strip() for text in overrides if text.lstrip("+").startswith("backend=")]
    if named:
        return named[-1]
    backend = read_chain(os.fspath(path)).values.get("backend")
    return None if backend is None else str(backend)


def load_as(schema: type[C], path: str | os.PathLike[str], overrides: Sequence[str]) -> Loaded[C]:
    """Read a configuration file with what it inherits, apply the overrides, resolve and validate.

    Args:
        schema: the back end's whole configuration.
        path: YAML file.
        overrides: `dotted.key=value` texts of the command line; may be empty.

    Raises:
        ConfigError: with one line that says what was got, what was expected and where it was set.
    """
    shown = os.fspath(path)
    values, stated = stated_values(schema, shown, overrides)
    try:
        config = schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, stated, shown, schema)) from error
    return Loaded(config, {key: stated.get(key, DEFAULT) for key in flat_values(config)})


def stated_values(
    schema: type[BaseModel], path: str, overrides: Sequence[str]
) -> tuple[dict[str, object], dict[str, str]]:
    """Every stated value, resolved but not validated, with the origin of each; values yet to be given are absent."""
    layers = [override_layer(text, schema) for text in overrides]
    merged = reduce(overlay, layers, read_chain(path))
    return _resolved(merged, path), merged.origins


def dump_config(config: BaseModel) -> str:
    """The complete configuration as YAML; `load_config` of it gives the same configuration back."""
    text: str = OmegaConf.to_yaml(OmegaConf.create(_escaped(config.model_dump(mode="json"))))
    return text


def flat_values(config: BaseModel) -> dict[str, object]:
    """Every value by dotted key, in the order of the schema; lists and empty mappings are values."""
    return flattened(config.model_dump(mode="json"))


def flattened(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """A tree of mappings as one mapping with dotted keys; lists and empty mappings are values."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def register_resolvers() -> None:
    """Make `${mul:a,b}`, `${div:a,b}` and `${max:a,b}` usable, as in NeMo-RL's files."""
    # OmegaConf 2.4 warns about `register_new_resolver`; in 2.3 `register_resolver` is an older, weaker function.
    current = "use_cache" in inspect.signature(OmegaConf.register_resolver).parameters
    register = OmegaConf.register_resolver if current else OmegaConf.register_new_resolver
    resolvers = {"mul": lambda a, b: a * b, "div": lambda a, b: a / b, "max": lambda a, b: max(a, b)}
    for name, function in resolvers.items():
        if not OmegaConf.has_resolver(name):
            register(name, function)


def _resolved(layer: Layer, path: str) -> dict[str, object]:
    register_resolvers()
    try:
        plain = OmegaConf.to_container(OmegaConf.create(layer.values), resolve=True)
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or "a value")
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key}: {reason} ({_set_where(key, layer.origins, path)})") from error
    return _without_missing(plain)


def _without_missing(tree: Mapping[str, object]) -> dict[str, object]:
    """Drop `???`, OmegaConf's mark for a value that a later file must give."""
    return {
        key: _without_missing(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if value != _MISSING
    }


def _escaped(tree: Mapping[str, object]) -> dict[str, object]:
    """Keep `${` in a text from being read as an interpolation, and backslashes before it as they are."""
    return _with_texts(tree, lambda found: f"{found[1] * 2}\\${{")


def _with_texts(tree: Mapping[str, object], change: Callable[[re.Match[str]], str]) -> dict[str, object]:
    return {
        key: _with_texts(value, change)
        if isinstance(value, Mapping)
        else _INTERPOLATION.sub(change, value)
        if isinstance(value, str)
        else value
        for key, value in tree.items()
    }


# --- layers ---


def overlay(base: Layer, layer: Layer) -> Layer:
    """The base with the layer on top: mappings merge, everything else is replaced by the later value.

    A section of the layer that carries the replace marker takes the place of the base's. The marker acts once.
    """
    values = _merged(base.values, layer.values)
    origins = base.origins | layer.origins
    return Layer(values, {key: origins[key] for key in flattened(values)})


def _merged(base: Mapping[str, object], layer: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in layer.items():
        if isinstance(value, Mapping):
            below = merged.get(key)
            keep = isinstance(below, Mapping) and value.get(REPLACE_MARKER) is not True
            merged[key] = _merged(below if keep and isinstance(below, Mapping) else {}, value)
        elif key != REPLACE_MARKER:
            merged[key] = value
    return merged


def _layer(tree: Mapping[str, object], origin: str) -> Layer:
    return Layer(
        dict(tree), dict.fromkeys(flattened(tree), origin) | dict.fromkeys(flattened(_merged({}, tree)), origin)
    )


def read_chain(path: str) -> Layer:
    """A file with everything it inherits.

    Args:
        path: the file as the user wrote it; it becomes the origin of its values.

    Raises:
        ConfigError: a file is missing, is no YAML mapping, repeats a key, or inherits itself.
    """
    return overlay(Layer({}, {}), _chain(path, above=()))


def _chain(path: str, *, above: tuple[str, ...]) -> Layer:
    """The same with the replace markers of a file that inherits nothing; `above` led here through `defaults:`."""
    if not above and "=" in path and not os.path.exists(path):
        raise ConfigError(f"got {path!r} where CONFIG belongs; expected a YAML file before key=value")
    if os.path.realpath(path) in map(os.path.realpath, above):
        raise ConfigError(f"{above[-1]}: 'defaults' leads back to {path}; a file cannot inherit itself")
    tree = read_mapping(path, above=above)
    defaults = tree.pop("defaults", [])
    names = [defaults] if isinstance(defaults, str) else defaults
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{path}: defaults: got {defaults!r}, expected a file name or a list of file names")
    parents = [os.path.normpath(os.path.join(os.path.dirname(path), name)) for name in names]
    below = [_chain(parent, above=(*above, path)) for parent in parents]
    own = _layer(tree, path)
    return reduce(overlay, [*below, own], Layer({}, {})) if below else own


def read_mapping(path: str, *, above: tuple[str, ...] = ()) -> dict[str, object]:
    """One file's own keys, nothing inherited and nothing resolved.

    Raises:
        ConfigError: the file is missing, is no YAML mapping, or repeats a key.
    """
    wanted_by = f" (named by 'defaults' of {above[-1]})" if above else ""
    try:
        loaded = OmegaConf.load(io.StringIO(Path(path).read_text(encoding="utf-8")))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}){wanted_by}") from error
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigError(f"{path}{where}: not valid YAML: {error.problem}") from error
    except OSError as error:
        if error.strerror is None:  # what OmegaConf raises for a file that holds one scalar
            raise ConfigError(f"{path}: holds a single value, expected a mapping of keys") from error
        raise ConfigError(f"{path}: cannot read the file: {error.strerror}{wanted_by}") from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path}: holds a list, expected a mapping of keys")
    return _with_text_keys(OmegaConf.to_container(loaded, resolve=False))


def _with_text_keys(tree: Mapping[object, object]) -> dict[str, object]:
    return {str(key): _with_text_keys(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def override_layer(text: str, schema: Schema) -> Layer:
    """`dotted.key=value` from the command line, the value read as YAML; with the origin `override`.

    `+key=value` and `++key=value`, Hydra's spellings for a key that the files may lack, mean the same. A whole mapping
    of names, `evaluation.benchmarks={...}`, replaces what the files name.

    Raises:
        ConfigError: no `=`, an unknown key, or a value that is no YAML.
    """
    name, equals, written = text.partition("=")
    name = name.strip().removeprefix("+").removeprefix("+")
    if not equals or not name:
        raise ConfigError(f"override {text!r}: expected key=value, for example train.steps=10")
    if not is_known(name, schema):
        nearest = nearest_name(name, known_names(schema))
        raise ConfigError(f"override {text!r}: unknown key {name}; the nearest known key is {nearest}")
    key = key_of(name, schema)
    value = _override_value(name, written, schema)
    parts = name.split(".")
    if key is not None and key.name != name:  # an entry of a free mapping is one part even where it has dots
        parts = [*key.name.split("."), name.removeprefix(f"{key.name}.")]
    for part in reversed(parts):
        value = {part: value}
    assert isinstance(value, dict)  # noqa: S101  a name has at least one part
    return _layer(value, OVERRIDE)


def _override_value(name: str, written: str, schema: Schema) -> object:
    key = key_of(name, schema)
    if written == "" or (
        key is not None and (key.takes_text if key.name == name else key.entries.startswith("a text"))
    ):
        # A path or a prompt needs no YAML quoting; quotes around it are dropped.
        quoted = len(written) >= 2 and written[0] in "'\"" and written[-1] == written[0]
        return None if written in _NULLS else written[1:-1] if quoted else written
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={written}"]), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"override {name}={written}: the value is not valid YAML") from error
    value: object = parsed["value"]
    if isinstance(value, Mapping):
        value = _with_text_keys(value)
        if key is not None and key.free_mapping:
            return {**value, REPLACE_MARKER: True}
    return value


# --- what a run wrote ---


def read_written(path: Path) -> dict[str, object]:
    """The values of the `config.yaml` that a run wrote, every value resolved.

    Nothing is looked up for it: `${oc.env:...}` in a folder that came from elsewhere would put the reader's environment
    into a report.

    Raises:
        RunFolderError: it cannot be read, or holds no mapping.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RunFolderError(f"{path} cannot be read ({reason}); expected the resolved configuration") from error
    if not isinstance(values, Mapping):
        raise RunFolderError(f"{path} holds no mapping; expected the configuration as the run wrote it")
    return _with_texts(_with_text_keys(values), lambda found: found[1][: len(found[1]) // 2] + "${")


def written_config(path: Path) -> Config:
    """The configuration of a run of the local back end, as its `config.yaml` stands; see `read_written`.

    Raises:
        RunFolderError: it cannot be read.
        ConfigError: it is no such configuration.
    """
    values = read_written(path)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, {}, str(path), Config)) from error


def check_same_configuration(where: Path, config: BaseModel, saved: Mapping[str, object]) -> None:
    """Refuse to continue a run under another configuration.

    Args:
        where: what was written with ``saved``, for the message.
        config: the present run's.
        saved: the configuration that stands there.

    Raises:
        CheckpointError: naming the first key that differs and may not.
    """
    ours, theirs = flat_values(config), flattened(saved)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key) and not key.startswith(FREE_KEYS):
            raise CheckpointError(
                f"{where} was written with {key}={theirs.get(key)!r}, this run has {ours.get(key)!r}; resume with "
                "the same configuration or choose another run.folder"
            )


def annotated_yaml(config: BaseModel, origins: Mapping[str, str]) -> str:
    """The complete configuration as YAML with the origin of every value in a comment, itself a configuration file."""
    tree = _escaped(config.model_dump(mode="json"))
    return "".join(f"{line}\n" for line in _annotated(tree, origins, ()))


def _annotated(tree: Mapping[str, object], origins: Mapping[str, str], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in tree.items():
        inside = (*path, key)
        label = f"{'  ' * len(path)}{_scalar(key)}:"
        if isinstance(value, Mapping) and value:
            yield label
            yield from _annotated(value, origins, inside)
        else:
            yield f"{f'{label} {_scalar(value)}':<{_COLUMN}}  # {origins['.'.join(inside)]}"


def _scalar(value: object) -> str:
    """A value on one line; `width` keeps the dumper from folding long texts."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    if "\n" in text.rstrip("\n").removesuffix("\n..."):
        text = yaml.safe_dump(value, default_style='"', width=float("inf"), allow_unicode=True)
    return text.rstrip("\n").removesuffix("\n...")


# --- faults in one line ---


def _explain(error: ValidationError, origins: Mapping[str, str], path: str, schema: Schema) -> str:
    """The first fault in full, on one line, and the names of the others.

    An unknown key comes before a missing one, because a misspelt key is both at once.
    """
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    others = list(dict.fromkeys(_name(detail["loc"]) for detail in details[1:] if detail["loc"]))
    more = ""
    if others:
        shown = ", ".join(others[:_SHOWN_OTHERS]) + (", ..." if len(others) > _SHOWN_OTHERS else "")
        more = f" (and {len(others)} more: {shown})"
    return _line(details[0], origins, path, schema) + more


def _line(detail: ErrorDetails, origins: Mapping[str, str], path: str, schema: Schema) -> str:
    kind, name = detail["type"], _name(detail["loc"])
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "extra_forbidden":
        nearest = nearest_name(name, known_names(schema))
        return f"{_origin(name, origins, path)}: unknown key {name}; the nearest known key is {nearest}"
    expected = _expected(name, schema)
    if kind == "missing" and isinstance(detail["loc"][-1], str):  # else a list is too short
        return f"{path}: missing {name}, expected {expected}; write it in the file or pass {name}=VALUE"
    got = json.dumps(detail["input"], default=str, ensure_ascii=False)
    got = got if len(got) <= _SHOWN_VALUE else f"{got[:_SHOWN_VALUE]}..."
    return f"{name}: got {got}, expected {expected} ({_set_where(name, origins, path)})"


def _name(loc: Sequence[int | str]) -> str:
    """The dotted key of an error's location; list positions belong to the key that holds the list."""
    return ".".join(part for part in loc if isinstance(part, str) and part != "[key]")


def _expected(name: str, schema: Schema) -> str:
    if name in section_names(schema):
        keys = [key.rpartition(".")[2] for key in known_keys(schema) if key.startswith(f"{name}.")]
        return f"a section with the keys {', '.join(keys)}"
    key = key_of(name, schema)
    if key is None:
        return "a legal value"
    return key.expectation if key.name == name else key.entries


def _origin(name: str, origins: Mapping[str, str], path: str) -> str:
    inside = [origin for key, origin in origins.items() if key == name or key.startswith(f"{name}.")]
    return inside[0] if inside else path


def _set_where(name: str, origins: Mapping[str, str], path: str) -> str:
    """Where a key got its value, in words; the file that was asked for when nothing states the key."""
    origin = _origin(name, origins, path)
    return "set on the command line" if origin == OVERRIDE else f"set in {origin}"
