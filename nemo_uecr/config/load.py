"""Files and overrides to one validated configuration, with the origin of every value.

As in NeMo-RL, `defaults:` names one or several files to inherit, relative to the file itself or else to the shipped
configurations; they are read depth first and later values win. `_override_: true` in a section replaces the inherited
section. Unlike NeMo-RL, this loader refuses duplicate keys and files that inherit themselves, and takes the marker at
any depth.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from nemo_uecr import door
from nemo_uecr.config.schema import Config, MethodSection, Section, named_method, nearest_name
from nemo_uecr.core.methods import METHODS, Method
from nemo_uecr.errors import CheckpointError, ConfigError, RunFolderError
from nemo_uecr.files import read_object

#: Origin of a value from the command line, and of one that was given nowhere.
OVERRIDE, DEFAULT = "override", "default"
REPLACE_MARKER = "_override_"
#: Most keys that a message names besides the first.
MOST_NAMED = 9
#: OmegaConf's mark for a value that another file must give.
MISSING = "???"
_PACKAGE = Path(__file__).resolve().parents[1]
_CLONED = _PACKAGE.parent / "examples" / "configs"
#: The shipped configurations: the clone's, or those inside an installed package.
SHIPPED = _CLONED if (_CLONED / "local" / "base.yaml").is_file() else _PACKAGE / "configs"
#: Keys that a resumed run may change, because they affect nothing of what is trained but its rounding.
FREE_KEYS = re.compile(
    r"train\.(steps|activation_checkpointing|microbatch_responses)|(telemetry|checkpoint|tolerances)\..*|run\.folder"
    r"|offload.*|threads|rollout\.(gpu_memory|microbatch_responses)|.*\.(url|timeout_s)"
)
#: Keys that may name code which decides what is trained; rewards have processes and records of their own.
OWN_CODE = re.compile(r"method\.name|data\.train|evaluation\.benchmarks\..+")
#: `${` and the backslashes before it, which OmegaConf reads as escapes there and nowhere else.
INTERPOLATION = re.compile(r"(\\*)\$\{")

#: `${mul:a,b}` and the others that NeMo-RL has, `add` since 0.8.
RESOLVERS: dict[str, Callable[..., Any]] = {
    "mul": lambda a, b: a * b, "div": lambda a, b: a / b, "max": lambda a, b: max(a, b), "add": lambda a, b: a + b,
}  # fmt: skip

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A validated configuration and the origin of each dotted key: a file, `override` or `default`."""

    config: C
    origins: dict[str, str]


@dataclass(frozen=True)
class Layer:
    """Values of files or overrides, and the origin of each dotted key."""

    values: dict[str, object]
    origins: dict[str, str]


# -- one configuration -----------------------------------------------------------------------------------------------


def load_config(path: str | os.PathLike[str], overrides: Sequence[str]) -> Loaded[Config]:
    """Load a configuration of the local back end; see `load_as`."""
    return load_as(Config, path, overrides)


def load_as(schema: type[C], path: str | os.PathLike[str], overrides: Sequence[str]) -> Loaded[C]:
    """Read a YAML file and its parents, apply `dotted.key=value` overrides, resolve and validate.

    In a `config.yaml` that a run wrote, values that were defaults keep that origin.

    Raises:
        ConfigError: one line with the value, what was expected and where it was set.
    """
    shown = os.fspath(path)
    base = read_chain(shown)
    for key, command in (("arms", "python -m benchmarks.study"), ("backend", "nemo-uecr train")):
        if key in base.values and key not in schema.model_fields:
            raise ConfigError(f"{shown} has the key {key}, so it is a file for another command: {command}")
    if {"policy", "grpo"} <= base.values.keys():
        raise ConfigError(f"{shown} is a recipe of NeMo-RL's; expected a configuration of the local back end")
    own = own_method(base.values.get("method"), overrides)
    layer = _merged_layers([base, *(override_layer(text, schema, own) for text in overrides)])
    if isinstance(name := layer.values.get("method"), str):
        raise ConfigError(f"method: got {name!r}, expected a section; write method.name={name}")
    values = _without_missing(resolved(layer.values, layer.origins, shown))
    config = validated(schema, _with_paths(values), layer.origins, shown)
    beside = Path(shown).with_name("origins.json")
    written = read_object(beside) if beside.is_file() else {}
    stated = {key: at for key, at in layer.origins.items() if at != shown or written.get(key) != DEFAULT}
    unused = [key for key in stated if key.startswith("method.")]  # of another method
    return Loaded(config, {key: stated.get(key, DEFAULT) for key in (*flat_values(config), *unused)})


class _MethodAlone(Section):
    """A configuration of the section `method` alone, for commands on saved batches and scores."""

    method: MethodSection


def load_method(name: str, overrides: Sequence[str], run: Method | None = None) -> Method:
    """The method with the settings of ``run``, or else its defaults, and `method.key=value` overrides."""
    base = _layer({"method": {**({} if run is None else run.settings()), "name": name}}, OVERRIDE)
    own = own_method(base.values.get("method"), overrides)
    layer = _merged_layers([base, *(override_layer(text, _MethodAlone, own) for text in overrides)])
    return validated(_MethodAlone, layer.values, layer.origins, OVERRIDE).method


def resolved(values: Any, origins: Mapping[str, str], path: str) -> Any:
    """The values, plain or OmegaConf's, with every `${...}` resolved; ``origins`` and ``path`` are for messages."""
    # OmegaConf 2.4 warns about `register_new_resolver`; in 2.3 `register_resolver` is an older, weaker function.
    current = "use_cache" in inspect.signature(OmegaConf.register_resolver).parameters
    register = OmegaConf.register_resolver if current else OmegaConf.register_new_resolver
    for name, function in RESOLVERS.items():
        register(name, function, replace=True)
    try:
        return OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        key, said = str(getattr(error, "full_key", None) or "a value"), str(error).splitlines()[0]
        hint = "; an environment variable is ${oc.env:NAME}" if re.search("key '[A-Z_]+' not found", said) else ""
        raise ConfigError(f"{key}: {said}{hint} ({_set_where(key, origins, path)})") from error


def _with_paths(value: Any, key: str = "") -> Any:
    """The values with the home folder for ``~/``; a shell's variable, which nothing would replace, is refused."""
    if isinstance(value, dict):
        return {name: _with_paths(inner, f"{key}.{name}".lstrip(".")) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_paths(inner, key) for inner in value]
    if isinstance(value, str) and (named := re.match(r"\$(\w+)/", value)):
        raise ConfigError(f"{key}: got {value!r}; expected ${{oc.env:{named[1]}}} for an environment variable")
    return os.path.expanduser(value) if isinstance(value, str) and value.startswith("~/") else value


def _without_missing(tree: Mapping[str, object]) -> dict[str, object]:
    """The values without those that are `???`."""
    return {
        key: _without_missing(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if value != MISSING
    }


def flat_values(config: BaseModel) -> dict[str, object]:
    """Every value by dotted key, in the order of the schema."""
    return flattened(config.model_dump(mode="json"))


def flattened(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested mappings as one with dotted keys; lists and empty mappings are values."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def value_at(tree: Any, key: str) -> Any:
    """The value at a dotted key of nested mappings and models; None where there is none."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else getattr(tree, part, None)
    return tree


def changed(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a nested mapping with other values at dotted keys."""
    made = copy.deepcopy(dict(tree))
    for name, value in values.items():
        *path, last = name.split(".")
        section = made
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return made


# -- layers ----------------------------------------------------------------------------------------------------------


def _merged_layers(layers: Iterable[Layer]) -> Layer:
    """The layers in order, later values winning; a replace marker acts once."""
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        values = _merged(values, layer.values)
        origins |= layer.origins
    return Layer(values, origins)


def _merged(base: Mapping[str, object], layer: Mapping[str, object]) -> dict[str, object]:
    """Merge mappings, except those that are empty or have a replace marker; replace all other values."""
    merged = dict(base)
    for key, value in layer.items():
        if isinstance(value, Mapping):
            inherited = merged.get(key) if value and value.get(REPLACE_MARKER) is not True else None
            merged[key] = _merged(inherited if isinstance(inherited, Mapping) else {}, value)
        elif key != REPLACE_MARKER:
            merged[key] = value
    return merged


def _layer(tree: dict[str, object], origin: str) -> Layer:
    return Layer(tree, dict.fromkeys(flattened(_merged({}, tree)), origin))


def read_chain(path: str, above: tuple[str, ...] = ()) -> Layer:
    """A file merged over its parents; each file's path, as written, is the origin of its values.

    A file without parents keeps its replace markers. ``above`` lists the files that inherit it.
    """
    tree, names = read_file(path, above)
    parents = [read_chain(_parent(path, name), (*above, path)) for name in names]
    own = _layer(tree, path)
    return _merged_layers([*parents, own]) if parents else own


def read_file(path: str, above: tuple[str, ...]) -> tuple[dict[str, object], list[str]]:
    """The values of one file and the names of its parents; ``above`` lists the files that inherit it."""
    if os.path.realpath(path) in map(os.path.realpath, above):
        raise ConfigError(f"{above[-1]}: 'defaults' leads back to {path}; a file cannot inherit itself")
    tree = _read_mapping(path, above)
    defaults = tree.pop("defaults", [])
    names = [defaults] if isinstance(defaults, str) else defaults
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: defaults: got {defaults!r}, expected a file name or a list of file names")
    return tree, names


def _parent(path: str, name: str) -> str:
    beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
    return beside if os.path.exists(beside) or not (SHIPPED / name).is_file() else str(SHIPPED / name)


def _read_mapping(path: str, above: tuple[str, ...]) -> dict[str, object]:
    try:
        tree: object = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        reason = "it contains a list"
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        tree, reason = None, getattr(error, "strerror", None) or " ".join(str(error).split())
    if not isinstance(tree, dict):
        heir = f" ({above[-1]} inherits it)" if above else ""
        raise ConfigError(
            f"{path}{heir}: cannot be read: {reason}; expected YAML as in examples/configs, or RUN/config.yaml"
        )
    return tree


def own_method(section: object, overrides: Sequence[str] = ()) -> type[Method] | None:
    """The method that a section `method` names, if it comes from a user's file: its settings are keys, too."""
    named = [section.get("name")] if isinstance(section, Mapping) else []
    named += [text.partition("=")[2] for text in overrides if text.lstrip("+").startswith("method.name=")]
    return named_method(named[-1]) if named and isinstance(named[-1], str) and door.is_own(named[-1]) else None


def override_layer(text: str, schema: type[BaseModel], own: type[Method] | None = None) -> Layer:
    """Parse `dotted.key=value` from the command line; the value is YAML, its origin `override`.

    Hydra's `+key=value` and `++key=value` mean the same. A whole mapping of names, `evaluation.benchmarks={...}`, or a
    whole `teacher={...}` replaces the one in the files.
    """
    name, _, written = text.partition("=")
    name = name.strip().lstrip("+")
    if not name:
        raise ConfigError(f"override {text!r}: expected key=value, without blanks around the equals sign")
    parts, annotation = key_of(name, schema, own)
    if annotation is None:
        raise ConfigError(_unknown(name, known_keys(schema, own), {name: OVERRIDE}, ""))
    if NoneType in get_args(annotation) and written.lower() in ("false", "true", "none", "off"):
        raise ConfigError(f"{name}: got {written!r}, expected a value, or null for none")
    value = _override_value(text, written, annotation)
    if isinstance(value, Mapping) and (get_origin(annotation) is dict or len(sections_of(annotation)) > 1):
        value = {**value, REPLACE_MARKER: True}
    return _layer(reduce(lambda inner, part: {part: inner}, reversed(parts), value), OVERRIDE)


def _override_value(text: str, written: str, annotation: object) -> Any:
    if written == "" or _takes_text(annotation):
        # Paths and prompts need no YAML quoting; surrounding quotes are dropped.
        quoted = len(written) >= 2 and written[0] in "'\"" and written[-1] == written[0]
        return None if written in ("null", "~") else written[1:-1] if quoted else written
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={written}"]), resolve=False)["value"]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"override {text}: the value is not valid YAML") from error


def _takes_text(annotation: object) -> bool:
    if get_origin(annotation) in (dict, tuple):
        return False
    return annotation is str or any(_takes_text(part) for part in get_args(annotation))


# -- known keys ------------------------------------------------------------------------------------------------------


def known_keys(schema: type[BaseModel], own: type[Method] | None = None) -> dict[str, Any]:
    """The type of every section and key by dotted name, in schema order; NAME is a name that the user chooses.

    ``own`` is a method of the user's, whose settings are keys like those of the shipped ones.
    """
    keys = dict(_schema_keys(schema))
    if own is not None:
        for place in [place for place, kind in keys.items() if kind is Method]:
            keys |= _settings_of(place, own)
    return keys


@cache
def _schema_keys(schema: type[BaseModel]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        keys[name] = field.annotation
        place = f"{name}.NAME" if get_origin(field.annotation) is dict else name
        for section in sections_of(field.annotation):
            keys |= {f"{place}.{key}": inner for key, inner in _schema_keys(section).items()}
        if field.annotation is Method:
            keys[f"{name}.name"] = str
            for method in METHODS.values():
                keys |= _settings_of(name, method)
    return keys


def _settings_of(section: str, method: type[Method]) -> dict[str, Any]:
    kinds = get_type_hints(method)
    return {f"{section}.{key}": kinds[key] for key in method.ranges()}


def sections_of(annotation: object) -> list[type[BaseModel]]:
    """The section types within a field's annotation; empty for a plain key."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections_of(part)]


def key_of(name: str, schema: type[BaseModel], method: type[Method] | None = None) -> tuple[list[str], Any]:
    """The parts of a key, of which a name that the user chooses is one, and its type; None for an unknown key."""
    keys = known_keys(schema, method)
    holder = next((key for key, kind in keys.items() if name.startswith(f"{key}.") and get_origin(kind) is dict), None)
    if holder is None:
        return name.split("."), keys.get(name)
    own, inner = name.removeprefix(f"{holder}."), get_args(keys[holder])[1]
    below = own.partition(".")[2]
    if below and sections_of(inner):
        return name.split("."), keys.get(f"{holder}.NAME.{below}")
    return [*holder.split("."), own], inner


# -- errors in one line ----------------------------------------------------------------------------------------------


def validated(
    schema: type[C], values: Mapping[str, object], origins: Mapping[str, str], path: str, *, within: str = ""
) -> C:
    """The values as a schema's object; ConfigError in one line otherwise, which says where a value was set.

    ``within`` precedes the keys that the rules of a section name, where the section is not the whole file.
    """
    places = {place: value_at(values, place) for place, kind in known_keys(schema).items() if kind is Method}
    keys = known_keys(schema, next(filter(None, map(own_method, places.values())), None))
    for place, section in places.items():
        for key in section if isinstance(section, Mapping) else ():
            if f"{place}.{key}" not in keys:
                raise ConfigError(_unknown(f"{place}.{key}", keys, origins, path))
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        # The first error in full, and the keys of the others. A misspelt key is both unknown and missing: report it as
        # unknown. With another back end all keys are unknown: report that before anything else.
        details = sorted(
            error.errors(include_url=False),
            key=lambda detail: (detail["loc"] != ("backend",), detail["type"] != "extra_forbidden"),
        )
        others = list(dict.fromkeys(_name(detail["loc"]) for detail in details[1:] if detail["loc"]))
        shown = ", ".join(others[:MOST_NAMED]) + ", ..." * (len(others) > MOST_NAMED)
        more = f" (and {len(others)} more: {shown})" if others else ""
        first = details[0]
        name, got = _name(first["loc"]), json.dumps(first["input"], default=str, ensure_ascii=False)
        if first["type"] == "value_error":
            message = f"{within}{first['ctx']['error']}"
        elif first["type"] == "extra_forbidden":
            message = _unknown(name, keys, origins, path)
        elif first["type"] == "missing" and isinstance(first["loc"][-1], str):  # else a list is too short
            message = f"{path}: missing {name}; write it in the file or pass {name}=VALUE"
        else:
            expected = first["msg"].replace("Input should be", "expected").partition(" or instance of ")[0]
            message = f"{name}: got {got:.60}, {expected} ({_set_where(name, origins, path)})"
        raise ConfigError(message + more) from error


def _unknown(name: str, keys: Mapping[str, Any], origins: Mapping[str, str], path: str) -> str:
    if name in keys:
        section, _, key = name.rpartition(".")
        return f"unknown key {name!r} ({_set_where(name, origins, path)}); in a file, write {section}: {{{key}: ...}}"
    nearest = nearest_name(name, keys)
    return f"unknown key {name} ({_set_where(name, origins, path)}); the nearest known key is {nearest}"


def _name(loc: Sequence[int | str]) -> str:
    """The dotted key of a pydantic error, without list indices and section tags."""
    return ".".join(part for part in loc if isinstance(part, str) and not part.startswith("["))


def _set_where(name: str, origins: Mapping[str, str], path: str) -> str:
    """Origin of a key, of a key in the section or of the list that contains it; else the file that was loaded."""
    within = [at for key, at in origins.items() if f"{key}.".startswith(f"{name}.")]
    around = [at for key, at in origins.items() if name.startswith(f"{key}.")]
    origin = origins.get(name) or next(iter((*within, *around)), path)
    return "set on the command line" if origin == OVERRIDE else f"set in {origin}"


# -- the configuration in a run folder -------------------------------------------------------------------------------


def dump_config(config: BaseModel) -> str:
    """The complete configuration as YAML that `load_config` reads back unchanged."""
    return str(OmegaConf.to_yaml(OmegaConf.create(_escaped(config))))


def annotated_yaml(values: Mapping[str, object], origins: Mapping[str, str]) -> str:
    """Values as YAML, the origin of each in a comment."""
    return "".join(f"{line}\n" for line in _annotated(_with_texts(values, _escape), origins, ()))


def _annotated(tree: Mapping[str, object], origins: Mapping[str, str], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in tree.items():
        label = f"{'  ' * len(path)}{_scalar(key)}:"
        if isinstance(value, Mapping) and value:
            yield label
            yield from _annotated(value, origins, (*path, key))
        else:
            yield f"{f'{label} {_scalar(value)}':<48}  # {_origin('.'.join((*path, key)), origins)}"


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Where a value was set; of one that an interpolation brings, where the interpolation stands."""
    while key not in origins and "." in key:
        key = key.rpartition(".")[0]
    return origins.get(key, DEFAULT)


def _scalar(value: object) -> str:
    style = '"' if isinstance(value, str) and "\n" in value else None
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=float("inf"), allow_unicode=True)
    return str(text).rstrip("\n").removesuffix("\n...")


def _escape(match: re.Match[str]) -> str:
    return f"{match[1] * 2}\\${{"


def _escaped(config: BaseModel) -> Any:
    """The values, with `${` in texts escaped so that it is not read as an interpolation."""
    return _with_texts(config.model_dump(mode="json"), _escape)


def _with_texts(value: Any, change: Callable[[re.Match[str]], str]) -> Any:
    if isinstance(value, dict):
        return {key: _with_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_texts(inner, change) for inner in value]
    return INTERPOLATION.sub(change, value) if isinstance(value, str) else value


def read_written(path: Path) -> dict[str, object]:
    """The values of the `config.yaml` that a run wrote.

    Nothing is interpolated: `${oc.env:...}` in someone else's run folder would put the reader's environment into a
    report.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RunFolderError(f"{path} cannot be read ({reason}); expected the resolved configuration") from error
    resolved: dict[str, object] = _with_texts(values, lambda match: match[1][: len(match[1]) // 2] + "${")
    return resolved


def own_sections(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of this project in what a run wrote: of a recipe of NeMo-RL's, those below `uecr`."""
    return dict(values.get("uecr", values))


def written_config(path: Path) -> Config:
    """The configuration that a local run wrote; see `read_written`."""
    values = read_written(path)
    if "uecr" in values:
        raise RunFolderError(f"{path} is of a run inside NeMo-RL; expected a run of the local back end")
    _check_code(path, own_code(values))
    return validated(Config, values, {}, str(path))


def written_method(path: Path) -> Method:
    """The method of a run of either back end, from the `config.yaml` that it wrote; see `read_written`."""
    values = read_written(path)
    if not isinstance(section := values.get("uecr"), Mapping):
        return written_config(path).method
    _check_code(path, {f"uecr.{key}": text for key, text in own_code({"method": section["method"]}).items()})
    return validated(_MethodAlone, {"method": section["method"]}, {}, str(path)).method


def _check_code(path: Path, named: Mapping[str, str]) -> None:
    """Refuse users' files, by key, that are not as they were in the run that wrote ``path``, before they are loaded.

    Somebody else may have made the folder, and the files are this machine's.
    """
    record = path.with_name("provenance.json")
    recorded = read_object(record).get("code", {}) if named and record.is_file() else {}
    for key, text in named.items():
        try:
            door.check(text, recorded.get(key))
        except ConfigError as error:
            raise CheckpointError(f"{path}: {key}: {error}") from error


def own_code(values: Mapping[str, object]) -> dict[str, str]:
    """The method and the readers of data that a configuration takes from users' files, by key."""
    given = {key: value for key, value in flattened(values).items() if OWN_CODE.fullmatch(key)}
    return {key: value for key, value in given.items() if isinstance(value, str) and door.is_own(value)}


def check_same_configuration(where: Path, config: Config, saved: Mapping[str, object]) -> None:
    """Refuse to resume a run with values other than ``saved``, except for `FREE_KEYS`.

    A method that reads the run's length does not let it change.
    """
    fixed = {"train.steps"} if "total_steps" in config.method.reads_run else set()
    trees = (config.model_dump(mode="json"), saved)  # of the list of rewards, `reward.0.weight` is a key
    ours, theirs = (
        flattened({key: dict(enumerate(v)) if isinstance(v, list) else v for key, v in tree.items()}) for tree in trees
    )
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key) and (key in fixed or not FREE_KEYS.fullmatch(key)):
            before, now = (f"{values[key]!r:.60}" if key in values else "no such key" for values in (theirs, ours))
            raise CheckpointError(
                f"{where} was written with {key}={before}, this run has {now}; resume with the same configuration or "
                "choose another run.folder"
            )
