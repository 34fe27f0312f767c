"""YAML files with inheritance: `defaults:` names the files that a file builds on.

Follows NeMo-RL's rules: `defaults:` is a text or a list, relative to the file that has it, read depth
first, later wins; `_override_: true` in a section replaces the inherited section. Beyond them: duplicate
keys are refused, the marker works at any depth, and a file that inherits itself is an error.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_uecr.config.old_numbers import refuse_old_numbers
from nemo_uecr.config.origins import Branch, branch_of, overlay
from nemo_uecr.errors import ConfigError

__all__ = ["read_chain", "read_mapping"]


def read_chain(path: str, *, above: tuple[str, ...] = ()) -> Branch:
    """A file with everything it inherits.

    Args:
        path: the file as the user wrote it; it becomes the origin of its values.
        above: the files that led here through `defaults:`, outermost first.

    Returns:
        The merged layer.

    Raises:
        ConfigError: a file is missing, is no YAML mapping, repeats a key, or inherits itself.
    """
    if not above and "=" in path and not os.path.exists(path):
        raise ConfigError(f"got {path!r} where CONFIG belongs; expected a YAML file before key=value")
    if _same(path, above):
        raise ConfigError(f"{above[-1]}: 'defaults' leads back to {path}; a file cannot inherit itself")
    tree = read_mapping(path, above=above)
    parents = _parents(tree.pop("defaults", []), path)
    layer = branch_of(tree, path)
    if not parents:
        return layer
    merged = Branch({}, path, replaces=False)
    for parent in parents:
        merged = overlay(merged, read_chain(parent, above=(*above, path)))
    return overlay(merged, layer)


def _same(path: str, above: tuple[str, ...]) -> bool:
    return os.path.realpath(path) in {os.path.realpath(name) for name in above}


def _parents(defaults: object, path: str) -> list[str]:
    names = [defaults] if isinstance(defaults, str) else defaults
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{path}: defaults: got {defaults!r}, expected a file name or a list of file names")
    return [os.path.normpath(os.path.join(os.path.dirname(path), name)) for name in names]


def read_mapping(path: str, *, above: tuple[str, ...]) -> dict[object, object]:
    """One file's own keys, nothing inherited and nothing resolved.

    Raises:
        ConfigError: the file is missing, is no YAML mapping, repeats a key, or has a number with a leading zero or
            colons.
    """
    text = _read_text(path, above)
    try:
        loaded = OmegaConf.load(io.StringIO(text))
        plain = OmegaConf.to_container(loaded, resolve=False)
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigError(f"{path}{where}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from error
    except OSError as error:  # what OmegaConf raises for a file that holds one scalar
        raise ConfigError(f"{path}: holds a single value, expected a mapping of keys") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply, expected sections of keys") from error
    if not isinstance(loaded, DictConfig) or not isinstance(plain, Mapping):
        raise ConfigError(f"{path}: holds a list, expected a mapping of keys")
    refuse_old_numbers(text, path)
    return dict(plain)


def _read_text(path: str, above: tuple[str, ...]) -> str:
    wanted_by = f" (named by 'defaults' of {above[-1]})" if above else ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}){wanted_by}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror}{wanted_by}") from error
