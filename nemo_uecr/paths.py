"""Paths that names in a configuration stand for: a name with a scheme is its provider's, any other stands for itself.

A provider is a module with `resolve_path`, which makes what is missing, and `locate_path`, which makes nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PROVIDERS = {"demo": "nemo_uecr.study.demo"}


def resolve_path(name: str) -> str:
    """The path of a model or data name, made where its provider can make it.

    Raises:
        DataError: the provider has no such name.
    """
    provider = _provider(name)
    return name if provider is None else str(provider.resolve_path(name))


def locate_path(name: str) -> str:
    """Like `resolve_path`, but nothing is made: the path may lead nowhere."""
    provider = _provider(name)
    return name if provider is None else str(provider.locate_path(name))


def _provider(name: str) -> Any:
    scheme, colon, _ = name.partition(":")
    return import_module(PROVIDERS[scheme]) if colon and scheme in PROVIDERS else None
