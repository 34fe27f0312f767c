"""TOP-D: distillation towards a teacher that is mixed with the student, by returns that are normalised in the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from nemo_uecr.core import EPSILON
from nemo_uecr.core.methods.base import TEACHER, Advantages, Method
from nemo_uecr.ranges import Range

if TYPE_CHECKING:
    from nemo_uecr.core.record import ScoredBatch


@dataclass(frozen=True, kw_only=True)
class TopD(Method):
    """A = (R - mean) / (Std + eps) over the group's tokens; R = r + mean of later r; r = log(mix pi_T/pi_old + 1 -
    mix).
    """

    name = "top_d"
    source = "arXiv 2607.04751 as PrimeIntellect-ai/prime-rl#2966 has it; the default of mix is ours"
    reads = TEACHER

    mix: Annotated[float, Range(0.001, 0.999)] = 0.5  # Share of the teacher in the mixture that is followed.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        gap_BT = batch.gap_BT.double()
        top_BT = gap_BT.clamp_min(0.0)  # keeps exp within its range
        r_BT = top_BT + (self.mix * (gap_BT - top_BT).exp() + (1.0 - self.mix) * (-top_BT).exp()).log()
        r_BT = r_BT.masked_fill(~batch.mask_BT, 0.0)
        through_BT = r_BT.cumsum(1)
        later_BT = batch.token_count_B.unsqueeze(1) - batch.mask_BT.cumsum(1)
        return_BT = r_BT + (through_BT[:, -1:] - through_BT) / later_BT.clamp_min(1.0)
        centred_BT = return_BT - batch.group_token_mean(return_BT).unsqueeze(1)
        std_B = batch.group_token_mean(centred_BT.square()).sqrt()
        return Advantages(centred_BT / (std_B.unsqueeze(1) + EPSILON), teacher_reward_B=batch.teacher_reward_B)
