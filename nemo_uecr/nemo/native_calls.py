"""Whether the installed NeMo-RL fits: its names, and the calls between it and this back end.

`native_calls.yaml` lists them. What is called is held against what takes the call, by binding its arguments; parameters
that are new and optional change nothing. NeMo-RL is imported inside functions, so that this module loads without it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import logging
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from nemo_uecr.errors import DependencyError

log = logging.getLogger(__name__)


class UpstreamError(DependencyError):
    """The installed NeMo-RL is not the one this back end was written for."""


class Called(NamedTuple):
    """A name of NeMo-RL's and the arguments of our calls of it; None where it is not called, or not by us."""

    module: str
    name: str
    arguments: str | None


class Replaced(NamedTuple):
    """A function of NeMo-RL's, and ours, which is called in its place."""

    module: str
    name: str
    ours: str


class Passed(NamedTuple):
    """A function of NeMo-RL's, a call in its source, and what it calls of ours."""

    module: str
    function: str
    call: str
    ours: str


class NativeCalls(NamedTuple):
    """What one side uses of NeMo-RL."""

    called: list[Called]
    replaced: list[Replaced]
    passed: list[Passed]


@functools.cache
def native_calls(side: str) -> NativeCalls:
    """The table of a side, ``driver`` or ``worker``."""
    table = yaml.safe_load(Path(__file__).with_name("native_calls.yaml").read_text(encoding="utf-8"))[side]
    called = [(module, name, given) for module, names in table["called"].items() for name, given in names.items()]
    replaced = [(module, name, ours) for module, names in table["replaced"].items() for name, ours in names.items()]
    passed = [
        (module, function, call, ours)
        for module, functions in table["passed"].items()
        for function, calls in functions.items()
        for call, ours in calls.items()
    ]
    return NativeCalls(
        [Called(*row) for row in called], [Replaced(*row) for row in replaced], [Passed(*row) for row in passed]
    )


def native(name: str) -> Any:
    """A class or function of NeMo-RL's, from the module in which the table has it."""
    called = [*native_calls("driver").called, *native_calls("worker").called]
    return getattr(load(next(each.module for each in called if each.name.split(".")[0] == name)), name)


def check_side(side: str, version: str) -> None:
    """Hold every call of a side against what is installed; the first that does not fit is named."""
    called, replaced, passed = native_calls(side)
    for each in called:
        check_called(each, version)
    for pair in replaced:
        check_replaced(pair, version)
    for call in passed:
        check_passed(call, version)


def check_called(called: Called, version: str) -> None:
    """Refuse a NeMo-RL without the name, or whose parameters do not take our arguments."""
    target = _find(called.module, called.name, version)
    if called.arguments is None:
        return
    words = called.arguments.split()
    positions, names = (
        [word for word in words if not word.endswith("=")],
        [word[:-1] for word in words if word.endswith("=")],
    )
    taken = inspect.signature(target)
    try:
        taken.bind(*positions, **dict.fromkeys(names))
    except TypeError as error:
        raise UpstreamError(
            f"NeMo-RL {version}: {called.module}.{called.name} takes ({', '.join(taken.parameters)}) and cannot be "
            f"called with ({', '.join(words)}): {error}"
        ) from error


def check_replaced(pair: Replaced, version: str) -> None:
    """Refuse a NeMo-RL whose callers must pass what ours does not take; what they may pass beside it is logged."""
    theirs, ours = inspect.signature(_find(pair.module, pair.name, version)), inspect.signature(_ours(pair.ours))
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    # Ray adds a parameter to every method of a class that it makes an actor of, and of the class's parents.
    known = [one for one in theirs.parameters.values() if one.name != "_ray_trace_ctx" and one.kind not in several]
    required = [one for one in known if one.default is one.empty]
    where = f"NeMo-RL {version}: {pair.module}.{pair.name} takes ({', '.join(one.name for one in known)})"
    try:
        ours.bind(**dict.fromkeys(one.name for one in required))
        bound = ours.bind(*(one.name for one in required if one.kind is not one.KEYWORD_ONLY))
    except TypeError as error:
        raise UpstreamError(f"{where}; {pair.ours} cannot stand in its place: {error}") from error
    moved = [name for name, value in bound.arguments.items() if isinstance(value, str) and value != name]
    if moved:
        raise UpstreamError(f"{where}; {pair.ours} has {', '.join(moved)} in another place")
    if new := [one.name for one in known if one not in required and not _takes(ours, one.name)]:
        _log_once(f"{where}; {pair.ours} does not take {', '.join(new)}, which a feature that is off would pass")


def check_passed(passed: Passed, version: str) -> None:
    """Refuse a NeMo-RL in whose source a function passes to ours what it does not take."""
    module = ast.parse(inspect.getsource(load(passed.module)))
    functions = [one for one in module.body if isinstance(one, ast.FunctionDef) and one.name == passed.function]
    for call in (node for function in functions for node in ast.walk(function)):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != passed.call:
            continue
        names = [str(keyword.arg) for keyword in call.keywords]
        try:
            inspect.signature(_ours(passed.ours)).bind("self", *call.args, **dict.fromkeys(names))
        except TypeError as error:
            given = [*map(ast.unparse, call.args), *(f"{name}=" for name in names)]
            raise UpstreamError(
                f"NeMo-RL {version}: {passed.function} calls {passed.call}({', '.join(given)}); {passed.ours} does not "
                f"take that: {error}"
            ) from error


def _find(module: str, name: str, version: str) -> Any:
    try:
        return attrgetter(name)(load(module))
    except AttributeError as error:
        raise UpstreamError(f"NeMo-RL {version}: {module} has no {name}; expected it there") from error


def _ours(place: str) -> Any:
    module, _, name = place.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def _takes(signature: inspect.Signature, name: str) -> bool:
    try:
        signature.bind_partial(**{name: None})
    except TypeError:
        return False
    return True


@functools.cache
def _log_once(message: str) -> None:
    log.info(message)


def load(module: str) -> Any:
    """A module of NeMo-RL's; an error says whether NeMo-RL is missing or something that it imports."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("nemo_rl"):
            raise UpstreamError(
                f"NeMo-RL imports {error.name}, which is not installed for {sys.executable}; run inside NeMo-RL's "
                "container, or install it"
            ) from error
        raise UpstreamError(
            f"NeMo-RL cannot be imported ({error}); run inside its container, or put its source tree on PYTHONPATH "
            "(the package of that name on PyPI is empty)"
        ) from error
