"""What a configuration computes: its objective as one equation, and the settings that its method does not read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nemo_uecr.config.load import DEFAULT, flat_values
from nemo_uecr.config.nemo_schema import AnyConfig
from nemo_uecr.config.schema import OPTIONAL_SETTINGS, REQUIRED_SETTINGS, MethodConfig

#: The keys that say what a teacher is.
TEACHER = re.compile(r"(teacher|teachers\..+)\.(model_name|self)")


def objective(config: AnyConfig) -> str:
    """What the run minimises, on one line: loss, token advantage, and the settings that the method uses.

    PG is the clipped surrogate, averaged over the valid tokens of the optimizer step; KL3 is the low-variance
    estimate of the KL to the reference policy. Optional settings are shown where they differ from their default.

    References:
        eq:final-objective.
    """
    loss, method, entry = config.loss, config.method, config.method.entry
    clip = f"clip {loss.clip_low:g}/{loss.clip_high:g}"
    second = f" + {method.opd_coef:g} PG(A_opd; {clip})" if "opd_coef" in entry.config_settings else ""
    reference = f" + {loss.reference_kl:g} KL3(ref)" if loss.reference_kl > 0 else ""
    advantage = entry.equation if entry.equation.startswith("A = ") else f"A: {entry.equation}"
    shown = {
        key: getattr(method, key)
        for key in (*REQUIRED_SETTINGS, *OPTIONAL_SETTINGS)
        if key in entry.config_settings and getattr(method, key) != MethodConfig.model_fields[key].default
    }
    shown |= {key: method.parameters[key] for key in entry.parameters}
    settings = ", ".join(f"{key} = {_value(value)}" for key, value in shown.items())
    return "; ".join(part for part in (f"loss = PG(A; {clip}){second}{reference}", advantage, settings) if part)


def _value(value: float | str) -> str:
    """A text is quoted where it would not look like one word: a separator may be the end of a line."""
    if isinstance(value, str):
        return value if value.isprintable() and " " not in value else repr(value)
    return f"{value:g}"


def unused_line(config: AnyConfig, origins: Mapping[str, str]) -> str | None:
    """What a file or an override states and the method does not use, on one line; None when everything is used."""
    entry = config.method.entry
    idle = [f"method.{key}" for key in (*REQUIRED_SETTINGS, *OPTIONAL_SETTINGS) if key not in entry.config_settings]
    idle += [f"method.parameters.{key}" for key in config.method.parameters if key not in entry.parameters]
    stated = [key for key in idle if origins[key] != DEFAULT]
    if not entry.needs_teacher:
        values = flat_values(config)
        stated = [key for key in values if TEACHER.fullmatch(key) and values[key] is not None] + stated
    return f"not used by method {config.method.name}: {', '.join(stated)}" if stated else None
