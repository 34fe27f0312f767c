"""A method that masks the loss, registered for one test: GRPO on the tokens of which the old policy was less sure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from nemo_uecr.core.methods import METHODS, Advantages
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.core.record import ScoredBatch


@dataclass(frozen=True, kw_only=True)
class Sparse(Grpo):
    """A = A^GRPO on the sampled tokens below the median of log pi_old; the mask says nothing about padding."""

    name, source = "sparse", ""

    def __call__(self, batch: ScoredBatch) -> Advantages:
        median = batch.old_logp_BT[batch.mask_BT].median()
        return replace(super().__call__(batch), loss_mask_BT=~(batch.old_logp_BT >= median))


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it ``method.name=sparse``."""
    monkeypatch.setitem(METHODS, "sparse", Sparse)
