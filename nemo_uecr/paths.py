"""Paths that names in a configuration stand for: `demo:` names are the demo's, any other stands for itself."""

from __future__ import annotations

from importlib import import_module

SCHEME = "demo:"
DEMO = "nemo_uecr.demo.cache"  # imported by name: layers below it resolve paths, too


def resolve_path(name: str) -> str:
    """The path of a model or data name; the demo is prepared if it is missing.

    Raises:
        DataError: the demo has no such name.
    """
    return str(import_module(DEMO).resolve_path(name)) if name.startswith(SCHEME) else name


def locate_path(name: str) -> str:
    """Like `resolve_path`, but nothing is made: the path may lead nowhere."""
    return str(import_module(DEMO).locate_path(name)) if name.startswith(SCHEME) else name
