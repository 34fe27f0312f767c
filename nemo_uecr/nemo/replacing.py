"""Names of a module and entries of registries, replaced for a while."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def replacing(module: ModuleType, substitutes: Mapping[str, Any]) -> Iterator[None]:
    """Put substitutes in the place of a module's names; what stood there comes back however the block ends."""
    native = {name: getattr(module, name) for name in substitutes}
    try:
        for name, substitute in substitutes.items():
            setattr(module, name, substitute)
        yield
    finally:
        for name, former in native.items():
            setattr(module, name, former)


@contextlib.contextmanager
def restoring(*registries: dict[str, Any]) -> Iterator[None]:
    """Take back what the block puts into registries, and into `typing` so that NeMo-RL can be imported."""
    native, typed = [dict(registry) for registry in registries], typing.TypedDict
    try:
        yield
    finally:
        typing.TypedDict = typed
        for registry, former in zip(registries, native, strict=True):
            registry.clear()
            registry.update(former)
