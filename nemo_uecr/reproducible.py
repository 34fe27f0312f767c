"""What makes a run repeatable: seeds by purpose, and the versions that a record states."""

from __future__ import annotations

import hashlib
import importlib.metadata


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(seed, "rollout", step)``: nothing depends on what ran before."""
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def installed(package: str) -> str | None:
    """The version of a distribution; None where it is not installed as one."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
