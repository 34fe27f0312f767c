"""The `config.yaml` that a run wrote, read as data: a run folder may come from somebody else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from nemo_uecr.config.files import read_mapping
from nemo_uecr.config.messages import explain
from nemo_uecr.config.schema import Config
from nemo_uecr.errors import ConfigError, RunFolderError

__all__ = ["read_written", "written_config"]

#: `${` that OmegaConf would resolve; `\\${` is text.
_INTERPOLATION = re.compile(r"(?<!\\)(?:\\\\)*\$\{")


def read_written(path: Path) -> dict[str, object]:
    """The values of a run's `config.yaml`, as they stand there.

    Nothing is looked up for it: a run writes every value resolved, and `${oc.env:...}` in a folder that came from
    elsewhere would put the reader's environment into a report.

    Raises:
        RunFolderError: If it cannot be read, inherits another file, or has a value yet to be resolved.
    """
    try:
        values = read_mapping(str(path), above=())
        if "defaults" in values:
            raise RunFolderError(f"{path} inherits other files; expected the complete file as the run wrote it")
        for text in _texts(values):
            if _INTERPOLATION.search(text):
                raise RunFolderError(f"{path}: {text!r} is yet to be resolved; expected the file as the run wrote it")
        plain = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except (ConfigError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
        raise RunFolderError(f"{path} cannot be read ({reason}); expected the resolved configuration") from error
    return {str(key): value for key, value in plain.items()}


def written_config(path: Path) -> Config:
    """The configuration of a run of the local back end, as its `config.yaml` stands; see `read_written`.

    Raises:
        RunFolderError: If it cannot be read, inherits another file, or has a value yet to be resolved.
        ConfigError: If it is no such configuration.
    """
    values = read_written(path)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, {}, str(path), Config)) from error


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
