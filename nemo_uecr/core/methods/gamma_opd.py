"""gammaOPD: discounted future gaps, bounded so that the verdict alone decides the sign.

Legend: B responses, T tokens (padded).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nemo_uecr.core.methods.base import TEACHER, Advantages, Method
from nemo_uecr.ranges import ZeroToOne

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.record import ScoredBatch


@dataclass(frozen=True, kw_only=True)
class GammaOpd(Method):
    """A = C / (mean abs C + abs C) + 2 R^task - 1; C = sum over this and later tokens of discount^distance delta.

    The first term lies in (-1, 1), so the sign is that of a verdict of 1 or 0; it is 0 where all gaps are 0.
    """

    name = "gamma_opd"
    source = "arXiv 2609.16937, equations 7 and 8, whose reward is -1 or 1; discount 0.99 is the paper's"
    reads = TEACHER
    needs_group = False

    discount: ZeroToOne = 0.99  # Of the next sampled token's gap; 0: the token's own gap alone, 1: all that follow.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        credit_BT = discounted(batch.gap_BT, batch.mask_BT, self.discount)
        size_BT = credit_BT.abs()
        scale_BT = batch.token_mean(size_BT).unsqueeze(1) + size_BT
        bounded_BT = credit_BT / scale_BT.masked_fill(scale_BT == 0, 1.0)
        verdict_B1 = (2.0 * batch.task_reward_B.double() - 1.0).unsqueeze(1)
        return Advantages(
            bounded_BT + verdict_B1, advantage_task_B=verdict_B1[:, 0], teacher_reward_B=batch.teacher_reward_B
        )


def discounted(value_BT: Tensor, mask_BT: Tensor, discount: float) -> Tensor:
    """[B, T] float64 ``sum_(k >= 0) discount^k value`` of the k-th next sampled token; what is not sampled counts not.

    The partial sums over 1, 2, 4, ... tokens are added pairwise: log2 T additions of tensors.
    """
    place_BT = (mask_BT.cumsum(1) - 1).clamp_min(0)  # among the response's sampled tokens
    values_BT = value_BT.double().masked_fill(~mask_BT, 0.0)
    sum_BT = values_BT.new_zeros(values_BT.shape).scatter_add(1, place_BT, values_BT)
    reach = 1
    while reach < sum_BT.shape[1]:
        later_BT = sum_BT[:, reach:] * discount**reach
        sum_BT = sum_BT.clone()
        sum_BT[:, :-reach] += later_BT
        reach *= 2
    return sum_BT.gather(1, place_BT)
