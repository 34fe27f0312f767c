"""The final objective of a configuration as one equation, and the settings that it does not read."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_uecr.config.load import DEFAULT
from nemo_uecr.config.methods import OPTIONAL_SETTINGS, REQUIRED_SETTINGS, needs_of
from nemo_uecr.config.nemo_schema import AnyConfig
from nemo_uecr.config.schema import MethodConfig

__all__ = ["objective", "unused_line", "unused_settings"]


def objective(config: AnyConfig, *, advantage: str) -> str:
    """What the run minimises, on one line.

    PG is the clipped surrogate, averaged over the valid tokens of the optimizer step; KL3 is the low-variance
    estimate of the KL to the reference policy.

    Args:
        config: the validated configuration.
        advantage: the method's token advantage in symbols, as the method registry of `core` states it. This
            layer is free of torch, so the caller brings the text.

    Returns:
        Loss, advantage, and the value of every setting that the method uses, separated by semicolons.

    References:
        eq:final-objective.
    """
    parts = [
        f"loss = {_surrogates(config)}{_reference(config)}",
        _advantage(advantage),
        *_values(config.method),
    ]
    return "; ".join(part for part in parts if part)


def _surrogates(config: AnyConfig) -> str:
    clip = f"clip {config.loss.clip_low:g}/{config.loss.clip_high:g}"
    if "opd_coef" in needs_of(config.method.name).config_settings:
        return f"PG(A; {clip}) + {config.method.opd_coef:g} PG(A_opd; {clip})"
    return f"PG(A; {clip})"


def _reference(config: AnyConfig) -> str:
    return f" + {config.loss.reference_kl:g} KL3(ref)" if config.loss.reference_kl > 0 else ""


def _advantage(text: str) -> str:
    return text if text.startswith("A = ") else f"A: {text}"


def _values(method: MethodConfig) -> list[str]:
    """`alpha = 1, rho = 0.5`: optional settings only where they differ from their default."""
    used = needs_of(method.name).config_settings
    shown = [key for key in REQUIRED_SETTINGS if key in used]
    shown += [
        key
        for key in OPTIONAL_SETTINGS
        if key in used and getattr(method, key) != MethodConfig.model_fields[key].default
    ]
    own = needs_of(method.name).parameters
    values = {key: getattr(method, key) for key in shown} | {key: method.parameters[key] for key in own}
    text = ", ".join(
        f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {_word(value)}" for key, value in values.items()
    )
    return [text] if text else []


def _word(text: str) -> str:
    """A text as it stands, quoted where it would not look like one word: a separator may be the end of a line."""
    return text if text.isprintable() and " " not in text else repr(text)


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
