"""The permutation control: the teacher's entropies keep their values and lose their positions."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nemo_uecr.core.records import ScoredBatch
from nemo_uecr.errors import ScoreError


def with_shuffled_entropy(batch: ScoredBatch, *, seed: int) -> ScoredBatch:
    """The batch with H^T permuted over the sampled tokens of each response.

    The permutation depends on the seed and the number of sampled tokens only, so it does not change with padding,
    with the order of responses, or with how the batch is split.

    Args:
        batch: the responses; ``teacher_entropy_BT`` is required.
        seed: which permutation.
    """
    if batch.teacher_entropy_BT is None:
        raise ScoreError("the batch has no teacher_entropy; expected the teacher's entropy, which this method needs")
    shuffled_BT = batch.teacher_entropy_BT.clone()
    for block in batch.blocks:
        for mask_T, source_T, target_T in zip(
            block.of(batch.mask_BT), block.of(batch.teacher_entropy_BT), block.of(shuffled_BT), strict=True
        ):
            values = source_T[mask_T]
            target_T[mask_T] = values[_permutation(len(values), seed).to(values.device)]
    return replace(batch, teacher_entropy_BT=shuffled_BT)


def _permutation(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + length) % 2**64)
    return torch.randperm(length, generator=generator)
