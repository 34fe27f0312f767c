"""The methods by name, each from the file that its line in `nemo_uecr.method_registry` names."""

from __future__ import annotations

from importlib import import_module

from nemo_uecr.core.methods.base import Method
from nemo_uecr.method_registry import REGISTRY, Entry

__all__ = ["METHODS", "Method"]


def _defined(entry: Entry) -> Method:
    module = import_module(f"{__name__}.{entry.file}")
    method = getattr(module, entry.name.upper())
    assert isinstance(method, Method), f"{module.__name__}.{entry.name.upper()} is no Method"
    assert method.name == entry.name, f"{module.__name__} calls it {method.name}, the registry {entry.name}"
    return method


METHODS: dict[str, Method] = {entry.name: _defined(entry) for entry in REGISTRY.values()}
