"""Which problems a step draws: a function of seed and step alone, so a resumed run draws the same ones."""

from __future__ import annotations

import random


def step_indices(*, problems: int, per_step: int, step: int, seed: int, shuffle: bool) -> list[int]:
    """Problem indices of one step (steps count from 1).

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
