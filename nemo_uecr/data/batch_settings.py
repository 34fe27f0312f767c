"""The method's settings in the header of a saved batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import ConfigError, DataError
from nemo_uecr.method_registry import REGISTRY

if TYPE_CHECKING:
    from pathlib import Path

    from nemo_uecr.core.records import Settings
    from nemo_uecr.data.batch_file import SavedBatch

__all__ = ["saved_settings"]

INTEGERS = ("step", "seed")
SWITCHES = ("sample_std",)
SHOWN = 40
"""Characters of a value that a message repeats."""


def saved_settings(saved: SavedBatch, where: Path | str) -> Settings:
    """The method's settings in the header of a saved step.

    Args:
        saved: what `load_batch` read.
        where: what an error message calls it.

    Raises:
        DataError: If they are not settings of a method.
    """
    from nemo_uecr.core.records import Settings

    given = saved.settings
    _check(given, where)
    values: dict[str, Any] = {**given}
    try:
        return Settings(**values)
    except ConfigError as error:
        raise DataError(
            f"{where}: the header's settings: {error}. The file was altered or is of another version"
        ) from error


def _check(given: dict[str, Any], where: Path | str) -> None:
    from dataclasses import fields

    from nemo_uecr.core.records import Settings

    known = {field.name for field in fields(Settings)}
    for name, value in given.items():
        if name not in known or not _fits(name, value):
            raise DataError(
                f"{where}: the header has the setting {name[:SHOWN]}={_shown(value)}; expected numbers of "
                f"{', '.join(sorted(known))}. The file was altered or is of another version"
            )
    names = {name for entry in REGISTRY.values() for name in entry.parameters}
    for name, value in given.get("parameters", {}).items():
        if name not in names or not _is_number(value):
            raise DataError(
                f"{where}: the header has the setting parameters.{name[:SHOWN]}={_shown(value)}; expected numbers of "
                f"{', '.join(sorted(names))}. The file was altered or is of another version"
            )


def _fits(name: str, value: object) -> bool:
    if name == "parameters":
        return isinstance(value, dict)
    if value is None:
        return True
    if name in SWITCHES:
        return isinstance(value, bool)
    return _is_number(value) and (name not in INTEGERS or isinstance(value, int))


def _is_number(value: object) -> bool:
    """Whether it is a number that floating point holds: JSON writes integers of any length, and 1e999."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
