"""Splits the responses to a problem into pseudo-groups of fixed sizes, the same way for every checkpoint.

Shape legend: B = responses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from nemo_uecr.audit.responses import Responses
from nemo_uecr.errors import DataError

Array = np.ndarray


def pseudo_groups(responses: Responses, sizes: Sequence[int], *, seed: int) -> tuple[Array, Array]:
    """Number and intended size of the pseudo-group of each response.

    The permutation of a problem's responses, in the order of their sample numbers, is a function of the seed and the
    problem's name alone, so that it is the
    same at every checkpoint and does not change when problems or checkpoints are added.

    Args:
        responses: each group (prompt of a checkpoint) must have a multiple of ``sum(sizes)`` responses.
        sizes: sizes of the pseudo-groups, for example 8 and 4.
        seed: of the permutation.

    Returns:
        [B] group numbers and [B] sizes.

    Raises:
        DataError: If a prompt has another number of responses.
    """
    whole = sum(sizes)
    group_B, size_B = np.zeros(len(responses.ids), dtype=np.int64), np.zeros(len(responses.ids), dtype=np.int64)
    pattern = np.repeat(np.arange(len(sizes)), sizes)
    next_group = 0
    order = np.argsort(responses.group_B, kind="stable")
    counts = np.bincount(responses.group_B)
    for rows in np.split(order, np.cumsum(counts)[:-1]):
        name = responses.problems[rows[0]]
        if len(rows) % whole:
            raise DataError(
                f"problem {name!r} has {len(rows)} responses at checkpoint {responses.checkpoint_B[rows[0]]}; expected "
                f"a multiple of {whole}, to form pseudo-groups of {' and '.join(map(str, sizes))}"
            )
        rows = rows[np.argsort(responses.sample_B[rows], kind="stable")]
        shuffled = rows[seeded(seed, name).permutation(len(rows))]
        repeats = len(rows) // whole
        place = np.concatenate([pattern + repeat * len(sizes) for repeat in range(repeats)])
        group_B[shuffled] = next_group + place
        size_B[shuffled] = np.asarray(sizes)[place % len(sizes)]
        next_group += repeats * len(sizes)
    return group_B, size_B


def seeded(seed: int, name: str) -> np.random.Generator:
    """A stream that depends on the seed and a name alone."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
