"""What several commands share: parameter types, loading a configuration, writing JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter, validators

from nemo_uecr.errors import ConfigError

if TYPE_CHECKING:
    from nemo_uecr.config.load import Loaded, LoadedConfig
    from nemo_uecr.config.nemo_schema import NemoConfig
    from nemo_uecr.config.schema import Config, MethodConfig
    from nemo_uecr.core.records import Settings

__all__ = [
    "AtLeastOne", "ConfigFile", "Json", "Override", "Seed", "family", "is_nemo_rl", "load", "load_and_report",
    "method_settings", "refuse_output", "whole_numbers", "write_json",
]  # fmt: skip

logger = logging.getLogger(__name__)


def _shown_default(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if value is False:
        return "off"
    return repr(value) if "\n" in str(value) else value


def family(name: str, summary: str | None = None) -> App:
    """An app for commands that begin with the same word: no `--no-` forms, and lists as `--name A B C`."""
    parameter = Parameter(negative=(), consume_multiple=True, show_default=_shown_default)
    return App(name=name, help=summary, default_parameter=parameter, suppress_keyboard_interrupt=False)


ConfigFile = Annotated[str, Parameter(help="YAML configuration file.")]
Override = Annotated[str, Parameter(help="`key=value` changes one value, for example train.steps=10.")]
Json = Annotated[Path | None, Parameter(name="--json", help="Also write the result to this JSON file.")]
AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Seed = Annotated[int, Parameter(validator=validators.Number(gte=0, lt=2**63))]


def is_nemo_rl(config: str, overrides: Sequence[str]) -> bool:
    """Whether the configuration names NeMo-RL as its back end."""
    from nemo_uecr.config.load import backend_of

    return backend_of(config, overrides) == "nemo_rl"


def load(config: str, overrides: Sequence[str]) -> Loaded[Config] | Loaded[NemoConfig]:
    """Load a configuration of either back end."""
    from nemo_uecr.config.load import load_config, load_nemo

    return load_nemo(config, overrides) if is_nemo_rl(config, overrides) else load_config(config, overrides)


def load_and_report(config: str, overrides: Sequence[str]) -> LoadedConfig:
    """Load a configuration of the local back end and log the settings that its method does not use."""
    from nemo_uecr.config.load import load_config
    from nemo_uecr.config.methods import unused_line

    loaded = load_config(config, overrides)
    line = unused_line(loaded.config, loaded.origins)
    if line is not None:
        logger.info(line)
    return loaded


def method_settings(name: str, words: Sequence[str], run: MethodConfig | None = None) -> Settings:
    """Settings of a method from ``key=value`` words; what is not given is the run's, or the configuration's default.

    Raises:
        ConfigError: an unknown method or key, a value out of range, or a setting that the method needs is missing.
    """
    from nemo_uecr.config.load import load_method
    from nemo_uecr.core.records import Settings

    of_the_run = [word for word in words if word.startswith(("step=", "seed="))]
    overrides = [f"method.{word}" for word in words if word not in of_the_run]
    try:
        given = load_method(name, overrides, run).core_settings()
        for key, _, text in (word.partition("=") for word in of_the_run):
            if not text.isdecimal():
                raise ConfigError(f"{key}: got {text!r}, expected a whole number")
            given[key] = int(text)
        return Settings(**given)
    except ConfigError as error:
        raise ConfigError(f"{error} (on this command: --set key=value, without 'method.')") from error


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers of ``1,5,10``.

    Raises:
        ConfigError: naming the option.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise ConfigError(f"{option}: got {text!r}, expected whole numbers set off by commas, for example 1,5,10")
    return [int(word) for word in words]


def refuse_output(out: Path, *inputs: Path) -> None:
    """Refuse, before hours of work, an output file without a folder to stand in, or that would overwrite an input.

    Raises:
        ConfigError: it is one of these.
    """
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: expected the name of a file in a folder that exists")
    if any(out.exists() and given.exists() and out.samefile(given) for given in inputs):
        raise ConfigError(f"{out} is the input itself and would be lost; name another file")


def write_json(path: Path | None, content: object) -> None:
    """Write the file whole where one is asked for."""
    from nemo_uecr.files import replace_file

    if path is not None:
        replace_file(path, (json.dumps(content, indent=1) + "\n").encode())
