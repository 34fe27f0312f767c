"""RLSD: the teacher's ratio, clipped tightly, scales the size of each token's GRPO advantage and never its sign."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from nemo_uecr.core.methods.base import TEACHER, Advantages
from nemo_uecr.core.methods.baselines import Grpo
from nemo_uecr.ranges import Range

if TYPE_CHECKING:
    from nemo_uecr.core.record import ScoredBatch


@dataclass(frozen=True, kw_only=True)
class Rlsd(Grpo):
    """A = A^GRPO (1 - mix + mix clip(exp(sign(A^GRPO) delta), 1 - bound, 1 + bound))."""

    name = "rlsd"
    source = "arXiv 2604.03128, whose teacher is the student with the answer in view; ms-swift's mix and bound"
    reads = TEACHER
    identities, monitored = ("finite", "sign_kept"), ("budget",)

    mix: Annotated[float, Range(0, 1)] = 0.5  # Share of the advantage that the teacher's ratio scales.
    bound: Annotated[float, Range(0, 0.99)] = 0.2  # The ratio is clipped to 1 - bound and 1 + bound.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        grpo = super().__call__(batch)
        ratio_BT = (grpo.advantage_BT.sign() * batch.gap_BT).exp().clamp(1.0 - self.bound, 1.0 + self.bound)
        w_BT = self.mix * ratio_BT + (1.0 - self.mix)
        return replace(
            grpo, advantage_BT=w_BT * grpo.advantage_BT, weight_BT=w_BT, teacher_reward_B=batch.teacher_reward_B
        )
