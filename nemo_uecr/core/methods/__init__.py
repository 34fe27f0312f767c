"""The methods by name, each from the file that its line in `nemo_uecr.method_registry` names."""

from __future__ import annotations

import traceback
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from nemo_uecr.core.methods.base import Method
from nemo_uecr.errors import ConfigError, UecrError, first_line
from nemo_uecr.method_registry import REGISTRY, Entry

__all__ = ["METHODS", "Method", "defined"]


def defined(entry: Entry) -> Method:
    """The method that a line of the registry stands for.

    Raises:
        ConfigError: If the file cannot be imported, or does not define it as the line says.
    """
    file = f"core/methods/{entry.file}.py"
    method = getattr(_imported(entry, file), entry.name.upper(), None)
    if not isinstance(method, Method) or method.name != entry.name:
        wanted = f'{entry.name.upper()} = Method(name="{entry.name}", ...)'
        raise ConfigError(f"method {entry.name}: {file} does not define it; expected {wanted}")
    return method


def _imported(entry: Entry, file: str) -> ModuleType:
    name = f"{__name__}.{entry.file}"
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # a point or a slash in it
        spec = None
    if spec is None:
        raise ConfigError(f"method {entry.name}: there is no {file}, which its line in method_registry.py names")
    try:
        return import_module(name)
    except UecrError:
        raise
    except (Exception, SystemExit) as error:  # the file is its author's program: what it raises has no common class
        place = _place(error, spec.origin or "", file)
        said = error.msg if isinstance(error, SyntaxError) else first_line(error)
        raise ConfigError(
            f"method {entry.name}: {place}: {type(error).__name__}: {said}; expected a file that Python can import"
        ) from error


def _place(error: BaseException, path: str, file: str) -> str:
    """File and line where it went wrong: the last one of this file, unless another one is no Python."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{file if error.filename == path else error.filename} line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{file} line {lines[-1]}" if lines else file


METHODS: dict[str, Method] = {entry.name: defined(entry) for entry in REGISTRY.values()}
