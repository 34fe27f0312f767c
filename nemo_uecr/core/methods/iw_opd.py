"""IW-OPD: on-policy distillation that trusts the teacher less the further the response has left it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from nemo_uecr.core.methods.base import TEACHER, Advantages, Method
from nemo_uecr.ranges import Range

if TYPE_CHECKING:
    from nemo_uecr.core.record import ScoredBatch

#: Below this sum of |delta|, nats, teacher and student agree on the whole response.
AGREEMENT = 1e-8


@dataclass(frozen=True, kw_only=True)
class IwOpd(Method):
    """A = delta (1 + amplification (1 - sum of earlier |delta| / sum |delta|))."""

    name = "iw_opd"
    source = "arXiv 2606.22600 as TRL 1.16 has it (iw_opd_gamma)"
    reads = TEACHER
    monitored = ("budget",)
    needs_group = False

    amplification: Annotated[float, Range(0, 100)] = 0.5  # How much more the first token counts than the last.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        size_BT = batch.gap_BT.abs().double()
        through_BT = size_BT.cumsum(1)
        before_BT = (through_BT - size_BT) / through_BT[:, -1:].clamp_min(AGREEMENT)
        w_BT = (1.0 + self.amplification * (1.0 - before_BT)).to(batch.gap_BT.dtype)
        return Advantages(batch.gap_BT * w_BT, weight_BT=w_BT, teacher_reward_B=batch.teacher_reward_B)
