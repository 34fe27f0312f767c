"""Seeds as a function of purpose and step: nothing depends on what ran before, so a resumed run draws the same."""

from __future__ import annotations

import hashlib


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, e.g. ``derive(seed, "rollout", step)``."""
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
