"""Whether callables of another package still take the parameters that are counted on."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from typing import Any

from nemo_uecr.nemo.errors import UpstreamError


@dataclass(frozen=True)
class Expected:
    """A line of a table: module, qualified name, parameters in order, and whether more may follow.

    Without parameters, None, only its being there is expected.
    """

    module: str
    name: str
    parameters: tuple[str, ...] | None
    open_end: bool


def expected_signatures(table: str) -> list[Expected]:
    """The lines ``module name: parameter ...`` of a table; an indented line continues the one above it.

    A line without a colon names something that has to be there.
    """
    found = []
    for line in table.replace("\n    ", " ").strip().splitlines():
        target, colon, names = line.partition(": ")
        module, name = target.split()
        if not colon:
            found.append(Expected(module, name, None, True))
            continue
        parameters = tuple(names.split())
        open_end = parameters[-1] == "..."
        found.append(Expected(module, name, parameters[:-1] if open_end else parameters, open_end))
    return found


def load_module(module: str) -> Any:
    """Import a module of NeMo-RL.

    Raises:
        UpstreamError: it is not there, or imports a package that is not.
    """
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


def check_signature(expected: Expected, version: str) -> None:
    """Compare one line with what is installed.

    Raises:
        UpstreamError: the callable is gone, or takes other parameters.
    """
    target: Any = load_module(expected.module)
    for part in expected.name.split("."):
        if not hasattr(target, part):
            raise UpstreamError(f"NeMo-RL {version}: {expected.module} has no {expected.name}; expected it there")
        target = getattr(target, part)
    if expected.parameters is None:
        return
    found = tuple(inspect.signature(target).parameters)
    compared = found[: len(expected.parameters)] if expected.open_end else found
    if compared != expected.parameters:
        raise UpstreamError(
            f"NeMo-RL {version}: {expected.module}.{expected.name} takes ({', '.join(found)}); expected "
            f"({', '.join(expected.parameters)}{', ...' if expected.open_end else ''})"
        )


def check_table(table: str, version: str) -> None:
    """Compare every line of a table with what is installed.

    Raises:
        UpstreamError: naming the first that differs.
    """
    for expected in expected_signatures(table):
        check_signature(expected, version)


def prepare_import() -> None:
    """Let NeMo-RL be imported on Python 3.11, where pydantic asks for the backport of TypedDict."""
    if sys.version_info < (3, 12):
        import typing

        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
