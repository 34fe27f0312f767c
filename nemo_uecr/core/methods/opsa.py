"""OPSA and its control: a negative advantage on the least likely tokens of the batch, without teacher or verifier."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from nemo_uecr.core.methods.base import Advantages, Method
from nemo_uecr.ranges import Range

if TYPE_CHECKING:
    from nemo_uecr.core.record import ScoredBatch

#: The advantage of every selected token, and how much the one of the highest entropy has beyond it.
PENALTY, BY_ENTROPY = -0.5, -0.5


@dataclass(frozen=True, kw_only=True)
class OpsaControl(Method):
    """A = -1/2 on the share of the batch's tokens with the lowest log pi_old; the others leave the loss."""

    name = "opsa_control"
    source = "the control of OPSA, arXiv 2608.31046: no teacher and no verifier; by its authors' repository"
    needs_group = False

    share: Annotated[float, Range(0.001, 1)] = 0.2  # Share of the batch's sampled tokens, at least one.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        order_N = batch.old_logp_BT[batch.mask_BT].argsort(stable=True)
        lowest_N = order_N[: max(1, int(self.share * len(order_N)))]
        chosen_N = (order_N < 0).index_fill(0, lowest_N, 1)  # False, but at the lowest
        chosen_BT = batch.mask_BT.masked_scatter(batch.mask_BT, chosen_N)
        return Advantages(PENALTY * batch.mask_BT, loss_mask_BT=chosen_BT)


@dataclass(frozen=True, kw_only=True)
class Opsa(OpsaControl):
    """A = -1/2 - 1/2 (H - min) / (max - min) on opsa_control's tokens, H the student's entropy."""

    name = "opsa"
    source = "OPSA, arXiv 2608.31046, by its authors' repository"
    reads = frozenset({"student_entropy"})

    def __call__(self, batch: ScoredBatch) -> Advantages:
        found, entropy_BT = super().__call__(batch), batch.score("student_entropy")
        chosen_BT = found.trained(batch.mask_BT)
        low = entropy_BT.masked_fill(~chosen_BT, math.inf).min()
        high = entropy_BT.masked_fill(~chosen_BT, -math.inf).max()
        scaled_BT = (entropy_BT - low) / (high - low) if high > low else 0 * entropy_BT
        return replace(found, advantage_BT=PENALTY + BY_ENTROPY * scaled_BT)
