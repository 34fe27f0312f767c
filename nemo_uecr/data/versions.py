"""Versions of installed packages, for what a run, a conversion or a measurement records of its surroundings."""

from __future__ import annotations

import importlib.metadata


def installed(package: str) -> str | None:
    """The version of a distribution; None where it is not installed as one."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
