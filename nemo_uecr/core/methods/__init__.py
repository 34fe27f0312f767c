"""The methods by name: every named `Method` in a module of this folder, and those of users' files, `FILE.py:NAME`.

Importing them loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from nemo_uecr import door
from nemo_uecr.core.methods import base
from nemo_uecr.core.methods.base import Advantages, Method, RunState
from nemo_uecr.errors import CheckpointError, ConfigError

__all__ = ["METHODS", "Advantages", "Method", "RunState", "check_revision", "method_class", "method_of"]

EXPECTED = "a class that derives from nemo_uecr.core.methods.Method and has __call__(self, batch)"


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
        _check_class(each, each.__module__)
    return found


def _check_class(method: type[Method], where: str) -> None:
    if "__dataclass_params__" not in vars(method):
        raise ConfigError(f"{where}: expected @dataclass(frozen=True, kw_only=True) above {method.__name__}")
    if taken := method.ranges().keys() & vars(RunState()).keys():
        raise ConfigError(f"{where}: the setting {min(taken)} of {method.__name__} has the name of a field of RunState")


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


def method_class(name: str, *, sha256: str | None = None) -> type[Method]:
    """The class of a method: a shipped one by its name, or one from a user's file, whose name is then `FILE.py:NAME`.

    Args:
        name: as in ``method.name`` of a configuration.
        sha256: digest of the user's file that a run recorded; another file is refused.

    Raises:
        ConfigError: If there is no such method, or the file has none under this name.
    """
    if name in METHODS:
        return METHODS[name]
    if not door.is_own(name):
        raise ConfigError(f"no method {name!r}; expected one of {', '.join(METHODS)}, or FILE.py:NAME")
    own = door.load(name, expected=EXPECTED, fits=_is_method, sha256=sha256)
    return _own(name, own.value, own.sha256)


def _is_method(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Method) and value.__call__ is not Method.__call__


@cache
def _own(name: str, found: type[Method], sha256: str) -> type[Method]:
    """The class under the name that the configuration has for it; the user's own class stays as it is."""
    _check_class(found, name)
    known = {"__doc__": found.__doc__, "__module__": found.__module__, "__qualname__": found.__qualname__}
    return type(found.__name__, (found,), known | {"name": name, "file_sha256": sha256, "__reduce__": _reduced})


def _reduced(method: Method) -> tuple[partial[Method], tuple[str, dict[str, Any]]]:
    """Pickled by its file's path: another process runs the same file, and no other."""
    return partial(method_of, sha256=method.file_sha256), (method.name, method.settings())


def method_of(name: str, settings: Mapping[str, Any], *, sha256: str | None = None) -> Method:
    """A method with its settings; those of other methods are left out.

    Raises:
        ConfigError: If there is no such method (see `method_class`) or setting, or one is missing or out of range.
    """
    method = method_class(name, sha256=sha256)
    if unknown := settings.keys() - SETTINGS - method.ranges().keys():
        listed = ", ".join(method.ranges()) or "none"
        raise ConfigError(f"{name}: unknown setting {', '.join(sorted(unknown))}; expected of {listed}")
    if missing := [key for key in method.required() if settings.get(key) is None]:
        raise ConfigError(f"method {name} needs {', '.join(missing)}, which it was not given")
    return method(**{key: value for key, value in settings.items() if key in method.ranges()})


def check_revision(where: object, method: Method | type[Method], record: Mapping[str, Any]) -> None:
    """Refuse what another equation of the same method made; ``record`` is a run's, or a saved batch's.

    A record without ``method_revision`` is older than the first change of an equation.

    Raises:
        CheckpointError: If the record has another revision.
    """
    before = record.get("method_revision", 1)
    if before != method.revision:
        raise CheckpointError(
            f"{where} was made by revision {before} of {method.name}, whose equation has changed since; expected "
            f"revision {method.revision}. Use the version of nemo_uecr that made it, or begin a new run"
        )
