"""What each method asks of the configuration, read off its line in the registry. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from nemo_uecr.errors import ConfigError
from nemo_uecr.method_registry import REGISTRY, Entry

if TYPE_CHECKING:
    from nemo_uecr.config.schema import MethodConfig

__all__ = [
    "OPTIONAL_SETTINGS", "REQUIRED_SETTINGS", "check_parameters", "core_settings", "nearest_name", "needs_of",
    "with_parameters",
]  # fmt: skip

REQUIRED_SETTINGS = ("alpha", "rho", "tau_delta", "tau_entropy")
"""Settings without a default in code: the configuration states them for every method that uses them."""

OPTIONAL_SETTINGS = ("std_floor", "opd_coef", "std", "scoring_noise", "turn_separator")
"""Settings of `method` that have a default; a method outside their scope ignores them."""


def needs_of(method: str) -> Entry:
    """The line of a method whose name the schema has accepted."""
    return REGISTRY[method]


def core_settings(method: MethodConfig) -> dict[str, Any]:
    """The method's scalars by the names of `core.records.Settings`; step and seed are the run's to add."""
    same = ("alpha", "rho", "tau_delta", "tau_entropy", "std_floor", "opd_coef", "parameters")
    return {name: getattr(method, name) for name in same} | {"sample_std": method.std == "sample"}


def with_parameters(values: object) -> object:
    """The `method` section as stated, with the defaults of the method's own parameters that it does not state."""
    if not isinstance(values, dict) or not isinstance(values.get("name"), str) or values["name"] not in REGISTRY:
        return values  # a name that is no text, or no method's, is the schema's to refuse
    stated = values.get("parameters", {})
    if not isinstance(stated, dict):
        return values
    own = {name: parameter.default for name, parameter in REGISTRY[values["name"]].parameters.items()}
    return {**values, "parameters": {**own, **stated}}


def check_parameters(method: str, parameters: dict[str, float]) -> None:
    """Refuse a parameter that no method has, and one outside its range; another method's is left alone."""
    known = {name for entry in REGISTRY.values() for name in entry.parameters}
    for name, value in parameters.items():
        key = f"method.parameters.{name}"
        if name not in known:
            own = sorted(REGISTRY[method].parameters)
            hint = f"the nearest is {nearest_name(name, own)!r}" if own else f"method {method} has none of its own"
            raise ConfigError(f"{key}: no such parameter; {hint}")
        if name in REGISTRY[method].parameters:
            REGISTRY[method].parameters[name].check(key, value)


def nearest_name(wrong: str, known: Iterable[str]) -> str:
    """The known name most similar to a wrong one.

    Args:
        wrong: what was written.
        known: every legal name; at least one.

    Returns:
        The most similar name; the first in alphabetical order among equals.
    """
    return max(sorted(known), key=lambda name: SequenceMatcher(None, wrong.lower(), name.lower()).ratio())
