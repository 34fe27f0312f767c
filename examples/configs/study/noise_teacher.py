"""Methods whose teacher knows nothing: its scores are moved to other tokens of the batch, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from nemo_uecr.core.methods import Advantages, Method
from nemo_uecr.core.methods.baselines import Atod as AtodMethod
from nemo_uecr.core.methods.baselines import GrpoPlusOpd as GrpoPlusOpdMethod
from nemo_uecr.core.methods.uecr import Uecr as UecrMethod
from nemo_uecr.core.methods.uecr_trust import UecrTrust as UecrTrustMethod
from nemo_uecr.core.record import ScoredBatch


def shuffled(batch: ScoredBatch) -> ScoredBatch:
    """The teacher's log-probability and entropy of each sampled token in the place of another one, of any response."""
    tokens = int(batch.mask_BT.sum())
    order_N = torch.randperm(tokens, generator=torch.Generator().manual_seed(batch.run.seed))
    moved = {
        name: score_BT.masked_scatter(batch.mask_BT, score_BT[batch.mask_BT][order_N])
        for name in ("teacher_logp_BT", "teacher_entropy_BT")
        if (score_BT := getattr(batch, name)) is not None
    }
    return replace(batch, **moved)


class Shuffled(Method):
    """Before a method: it reads the shuffled scores."""

    def __call__(self, batch: ScoredBatch) -> Advantages:
        """The method on the shuffled scores."""
        return super().__call__(shuffled(batch))


@dataclass(frozen=True, kw_only=True)
class Uecr(Shuffled, UecrMethod):
    """UECR with the teacher's scores shuffled."""

    reads_run = ("seed",)


@dataclass(frozen=True, kw_only=True)
class UecrTrust(Shuffled, UecrTrustMethod):
    """uecr_trust with the teacher's scores shuffled."""

    reads_run = ("seed", "state")


@dataclass(frozen=True, kw_only=True)
class GrpoPlusOpd(Shuffled, GrpoPlusOpdMethod):
    """grpo_plus_opd with the teacher's scores shuffled."""

    reads_run = ("seed",)


@dataclass(frozen=True, kw_only=True)
class Atod(Shuffled, AtodMethod):
    """ATOD with the teacher's scores shuffled."""

    reads_run = ("seed", "step")
