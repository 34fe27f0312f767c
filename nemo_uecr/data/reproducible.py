"""What makes a run repeatable: which problems a step draws, seeds by purpose, and the versions that a record states."""

from __future__ import annotations

import hashlib
import importlib.metadata
import random

__all__ = ["derive", "installed", "step_indices"]


def step_indices(*, problems: int, per_step: int, step: int, seed: int, shuffle: bool) -> list[int]:
    """Problem indices of one step (steps count from 1): a function of seed and step, so a resumed run draws the same.

    The file is passed over again and again; with ``shuffle`` each pass has its own seeded order. A step that crosses
    the end of a pass continues in the next one.
    """
    first = (step - 1) * per_step
    orders: dict[int, list[int]] = {}
    indices = []
    for position in range(first, first + per_step):
        epoch, place = divmod(position, problems)
        if epoch not in orders:
            orders[epoch] = list(range(problems))
            if shuffle:
                random.Random(f"order:{seed}:{epoch}").shuffle(orders[epoch])
        indices.append(orders[epoch][place])
    return indices


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
