"""NeMo-RL's recipes as NeMo-RL reads them, on a machine without it: inheritance, overrides, interpolations.

`defaults` names files relative to the file itself, read depth first; later ones win, by OmegaConf's own merge.
`_override_: true` replaces a section of the first level. Overrides change the whole, then `${...}` is resolved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from nemo_uecr.config.load import OVERRIDE, REPLACE_MARKER, flattened, read_chain, read_file, resolved
from nemo_uecr.config.overrides import Override, parsed
from nemo_uecr.config.schema import nearest_name
from nemo_uecr.errors import ConfigError

#: How like an inherited key a new one is that probably meant it, and by how many letters they differ in length.
ALIKE, LETTERS = 0.9, 2


@dataclass(frozen=True)
class Recipe:
    """A recipe with every value, the file, or `override`, that set each dotted key, and what looks misspelt of them."""

    path: str
    values: dict[str, Any]
    origins: dict[str, str]
    doubts: tuple[str, ...]


def is_recipe(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a recipe of NeMo-RL's, by its sections; a run of this project's own 0.3 form is refused."""
    values = read_chain(os.fspath(path)).values
    if values.get("backend") == "nemo_rl":
        raise ConfigError(
            f"{os.fspath(path)} has backend: nemo_rl, a form of before 0.4; write a recipe of NeMo-RL's with a section "
            "uecr: docs/nemo-rl.md"
        )
    if "policy" in values and (other := sorted({"sft", "distillation", "dpo", "ppo", "rm"} & values.keys())):
        raise ConfigError(
            f"{os.fspath(path)} is a recipe of NeMo-RL's with a section {other[0]} and none named grpo; expected one "
            "of its recipes of GRPO"
        )
    return {"policy", "grpo"} <= values.keys()


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str]) -> Recipe:
    """The resolved recipe; ConfigError in one line for a file or an override that cannot be read."""
    shown = os.fspath(path)
    tree, names = read_file(shown, ())
    base, below = _parents(names, shown, ())
    doubts = _doubts(base, tree, shown)
    config, origins = _over(base, below, tree, shown) if names else _alone(tree, shown)
    OmegaConf.set_struct(config, True)
    for text in overrides:
        override = parsed(text)
        if override.kind in ("add", "set"):
            doubts += _doubts(config, {override.key: override.value}, f"override {text}")
        try:
            _apply(config, override)
        except OmegaConfBaseException as error:
            raise ConfigError(f"override {text!r}: {' '.join(str(error).split())}") from error
        origins |= dict.fromkeys(flattened({override.key: override.value}), OVERRIDE)
    return Recipe(shown, resolved(config, origins, shown), origins, tuple(doubts))


def _composed(path: str, above: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
    """A file merged over its parents, and the file that set each key; ``above`` lists the files that inherit it."""
    tree, names = read_file(path, above)
    return _over(*_parents(names, path, above), tree, path) if names else _alone(tree, path)


def _alone(tree: dict[str, Any], path: str) -> tuple[DictConfig, dict[str, str]]:
    """A file by itself: one that inherits none keeps its markers, as in NeMo-RL."""
    return OmegaConf.create(tree), dict.fromkeys(flattened(tree), path)


def _over(
    base: DictConfig, below: dict[str, str], tree: dict[str, Any], path: str
) -> tuple[DictConfig, dict[str, str]]:
    """A file merged over what it inherits."""
    for key, value in flattened(tree).items():
        if value == {} and key.startswith("uecr.") and OmegaConf.select(base, key):
            raise ConfigError(
                f"{path}: {key}: {{}} would leave the inherited {', '.join(OmegaConf.select(base, key))}, as NeMo-RL "
                f"merges files; leave it out, and take each away on the command line: ~{key}.NAME"
            )
    own, origins = _alone(tree, path)
    return _merged(base, own), below | origins


def _parents(names: Sequence[str], path: str, above: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
    """What a file inherits, and the file that set each key."""
    base, below = OmegaConf.create({}), dict[str, str]()
    for name in names:
        parent, of_parent = _composed(os.path.normpath(os.path.join(os.path.dirname(path), name)), (*above, path))
        base, below = _merged(base, parent), below | of_parent
    return base, below


def _doubts(inherited: DictConfig, given: dict[str, Any], where: str) -> list[str]:
    """Keys that nothing inherited has, but almost: NeMo-RL takes any key that is added, and never reads a misspelt one.

    The section `uecr` has a schema of its own.
    """
    there = cast(dict[str, Any], OmegaConf.to_container(inherited))
    found = {_almost(key.split("."), there) for key in flattened(given) if not key.startswith("uecr.")}
    return [
        f"{key} ({where}) is new beside the inherited {other}, which keeps its value; NeMo-RL reads no misspelt key"
        for key, other in sorted(found - {("", "")})
    ]


def _almost(parts: Sequence[str], there: Any) -> tuple[str, str]:
    """The first part of a key that is not there, as a dotted key, and its neighbour of almost that name; else ""."""
    for place, part in enumerate(parts):
        if not isinstance(there, dict):
            break
        if part not in there:
            names = [str(name) for name in there]
            swapped = [name for name in names if sorted(name) == sorted(part)]
            near = swapped or get_close_matches(part, names, n=1, cutoff=ALIKE)
            # `num_val_generations_per_prompt` is no `num_generations_per_prompt`.
            if near and abs(len(near[0]) - len(part)) <= LETTERS:
                return ".".join(parts[: place + 1]), near[0]
            break
        there = there[part]
    return "", ""


def _merged(base: DictConfig, layer: DictConfig) -> DictConfig:
    for key in list(layer):
        section = None if OmegaConf.is_missing(layer, key) else layer._get_node(key)
        if (
            isinstance(section, DictConfig)
            and isinstance(section._content, dict)
            and section.get(REPLACE_MARKER, False)
        ):
            section.pop(REPLACE_MARKER)
            base.pop(key, None)
    return cast(DictConfig, OmegaConf.merge(base, layer))


def _apply(config: DictConfig, override: Override) -> None:
    """Change the configuration as Hydra does: `key=` needs the key, `+key=` needs it missing, `++key=` neither."""
    key, value = override.key, override.value
    if override.kind == "delete":
        _delete(config, override)
    elif override.kind == "change":
        try:
            OmegaConf.update(config, key, value, merge=True)
        except (ConfigAttributeError, ConfigKeyError) as error:
            nearest = nearest_name(key, flattened(cast(dict[str, Any], OmegaConf.to_container(config))))
            raise ConfigError(
                f"override {override.text!r}: the recipe has no key {key}, the nearest is {nearest}; write ++{key}= to "
                "add one"
            ) from error
    else:
        there = OmegaConf.select(config, key, throw_on_missing=False) is not None
        if override.kind == "add" and there and not isinstance(value, dict | list):
            raise ConfigError(f"override {override.text!r}: the recipe has the key {key}; write {key}= or ++{key}=")
        OmegaConf.update(config, key, value, merge=True, force_add=True)


def _delete(config: DictConfig, override: Override) -> None:
    held = OmegaConf.select(config, override.key, throw_on_missing=False)
    if held is None:
        raise ConfigError(f"override {override.text!r}: the recipe has no value at {override.key}")
    if override.value is not None and override.value != held:
        raise ConfigError(f"override {override.text!r}: the value is {held!r}; write ~{override.key} to remove any")
    above, _, last = override.key.rpartition(".")
    with open_dict(config):
        del (OmegaConf.select(config, above) if above else config)[last]
