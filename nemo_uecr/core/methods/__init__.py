"""The methods by name: every named `Method` in a module of this folder. Importing them loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from nemo_uecr.core.methods import base
from nemo_uecr.core.methods.base import Advantages, Method, RunState
from nemo_uecr.errors import ConfigError

__all__ = ["METHODS", "Advantages", "Method", "RunState", "method_of"]


def _found() -> dict[str, type[Method]]:
    modules = [_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    methods = [each for each in dict.fromkeys(classes) if issubclass(each, Method)]
    named = [each for each in methods if "name" in vars(each)]
    for each in methods:
        if not hasattr(each, "name") and each.__module__ != base.__name__:
            raise ConfigError(f"{each.__module__}: expected a name in {each.__name__}, the value of method.name")
    found = {each.name: each for each in sorted(named, key=lambda each: each.name)}
    for each in named:
        if found[each.name] is not each:
            homes = f"{each.__module__} and {found[each.name].__module__}"
            raise ConfigError(f"two methods are named {each.name!r}, in {homes}; expected different names")
        if "__dataclass_params__" not in vars(each):
            raise ConfigError(
                f"{each.__module__}: expected @dataclass(frozen=True, kw_only=True) above {each.__name__}"
            )
        if taken := each.ranges().keys() & vars(RunState()).keys():
            raise ConfigError(f"method {each.name}: the setting {min(taken)} has the name of a field of RunState")
    return found


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except TypeError as error:
        if "dataclass" not in str(error):
            raise
        raise ConfigError(f"{name}: {error}; expected @dataclass(frozen=True, kw_only=True)") from error


METHODS: dict[str, type[Method]] = _found()
#: Every setting that some method has.
SETTINGS = frozenset(key for method in METHODS.values() for key in method.ranges())


def method_of(name: str, settings: Mapping[str, Any]) -> Method:
    """A method with its settings; those of other methods are left out.

    Raises:
        ConfigError: If there is no such method or setting, or one is missing or out of range.
    """
    if name not in METHODS:
        raise ConfigError(f"no method {name!r}; expected one of {', '.join(METHODS)}")
    method = METHODS[name]
    if unknown := settings.keys() - SETTINGS:
        listed = ", ".join(method.ranges()) or "none"
        raise ConfigError(f"{name}: unknown setting {', '.join(sorted(unknown))}; expected of {listed}")
    if missing := [key for key in method.required() if settings.get(key) is None]:
        raise ConfigError(f"method {name} needs {', '.join(missing)}, which it was not given")
    return method(**{key: value for key, value in settings.items() if key in method.ranges()})
