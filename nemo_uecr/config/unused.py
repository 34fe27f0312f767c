"""Settings that were given but that the chosen method does not read: accepted, and said out loud."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_uecr.config.methods import OPTIONAL_SETTINGS, REQUIRED_SETTINGS, needs_of
from nemo_uecr.config.nemo_schema import AnyConfig
from nemo_uecr.config.origins import DEFAULT

__all__ = ["unused_line", "unused_settings"]


def unused_settings(config: AnyConfig, origins: Mapping[str, str]) -> tuple[str, ...]:
    """Keys that a file or an override states and that the method does not use.

    Args:
        config: the validated configuration.
        origins: origin by dotted key; a default that nobody wrote is not reported.

    Returns:
        Dotted keys, in the order of the schema.
    """
    needs = needs_of(config.method.name)
    idle = [f"method.{key}" for key in (*REQUIRED_SETTINGS, *OPTIONAL_SETTINGS) if key not in needs.config_settings]
    idle += [f"method.parameters.{key}" for key in config.method.parameters if key not in needs.parameters]
    stated = [key for key in idle if origins[key] != DEFAULT]
    if not needs.needs_teacher and config.teacher.model_name is not None:
        stated.insert(0, "teacher.model_name")
    return tuple(stated)


def unused_line(config: AnyConfig, origins: Mapping[str, str]) -> str | None:
    """The report on one line, `not used by method grpo: method.alpha, ...`; None when everything is used."""
    unused = unused_settings(config, origins)
    return f"not used by method {config.method.name}: {', '.join(unused)}" if unused else None
