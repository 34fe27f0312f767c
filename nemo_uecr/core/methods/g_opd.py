"""G-OPD: distillation whose implicit reward, teacher against initial student, is scaled; above 1 it extrapolates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from nemo_uecr.core import GAP_CLIP
from nemo_uecr.core.methods.base import TEACHER, Advantages, Method
from nemo_uecr.ranges import Range

if TYPE_CHECKING:
    from nemo_uecr.core.record import ScoredBatch


@dataclass(frozen=True, kw_only=True)
class GOpd(Method):
    """A = clip(extrapolation (log pi_T - log pi_0) - (log pi_old - log pi_0), -5, 5), pi_0 the initial student."""

    name = "g_opd"
    source = "G-OPD; its authors' ExOPD has extrapolation 1.25; the clip is pg_opd's and not theirs"
    reads = TEACHER | {"initial_logp"}
    needs_group = False

    extrapolation: Annotated[float, Range(0, 10)] = 1.25  # Scale of the implicit reward; 1 is pg_opd.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        # In this form an extrapolation of 1 gives pg_opd's bits.
        advantage_BT = batch.gap_BT + (self.extrapolation - 1.0) * batch.gap_to("initial_logp")
        return Advantages(advantage_BT.clamp(-GAP_CLIP, GAP_CLIP), teacher_reward_B=batch.teacher_reward_B)
