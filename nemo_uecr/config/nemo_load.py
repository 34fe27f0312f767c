"""The configuration of a NeMo-RL run, read as every configuration is."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nemo_uecr.config.files import read_chain
from nemo_uecr.config.load import Loaded, load_as
from nemo_uecr.config.nemo_schema import NemoConfig
from nemo_uecr.config.origins import values_of

__all__ = ["backend_of", "load_nemo", "load_nemo_config"]


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


def load_nemo(path: str | os.PathLike[str], overrides: Sequence[str]) -> Loaded[NemoConfig]:
    """The configuration of a NeMo-RL run with the origin of every value; see `load.load_as`."""
    return load_as(NemoConfig, path, overrides)


def load_nemo_config(path: str | os.PathLike[str], overrides: Sequence[str]) -> NemoConfig:
    """The configuration of a NeMo-RL run."""
    return load_nemo(path, overrides).config
