"""The methods by name, each from the file that its line in `nemo_uecr.method_registry` names."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from nemo_uecr.core.methods.base import Method
from nemo_uecr.errors import ConfigError
from nemo_uecr.method_registry import REGISTRY, Entry

__all__ = ["METHODS", "Method", "defined"]


def defined(entry: Entry) -> Method:
    """The method that a line of the registry stands for.

    Raises:
        ConfigError: If the file does not define it as the line says.
    """
    file, module = f"core/methods/{entry.file}.py", f"{__name__}.{entry.file}"
    if find_spec(module) is None:
        raise ConfigError(f"method {entry.name}: there is no {file}, which its line in method_registry.py names")
    method = getattr(import_module(module), entry.name.upper(), None)
    if not isinstance(method, Method) or method.name != entry.name:
        wanted = f'{entry.name.upper()} = Method(name="{entry.name}", ...)'
        raise ConfigError(f"method {entry.name}: {file} does not define it; expected {wanted}")
    return method


METHODS: dict[str, Method] = {entry.name: defined(entry) for entry in REGISTRY.values()}
