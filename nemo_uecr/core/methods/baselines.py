"""What UECR is compared with: GRPO, on-policy distillation, their naive sum, distilled RL, and ATOD.

Legend: B responses, T tokens (padded), [B, 1] one value per response.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nemo_uecr.core import GAP_CLIP
from nemo_uecr.core.methods.base import TEACHER, Advantages, Grouped, Method
from nemo_uecr.ranges import Finite

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.record import ScoredBatch

#: Ratio bound epsilon_T of distilled RL; its value is taken from the training scripts of that method's authors.
RATIO_BOUND = 3.0
#: Annealing length in steps, and the ends of both schedules. Second-hand figures: no official code is public.
ANNEAL_STEPS = 80
KAPPA_LOW, KAPPA_FALL, RHO_RISE = 0.1, 0.9, 1.0


@dataclass(frozen=True, kw_only=True)
class Grpo(Grouped):
    """A = A^GRPO = (R^task - mean) / (Std(R^task) + eps), the same on every token."""

    name = "grpo"
    source = "eq:grpo-adv; the standard deviation's form and eps follow the paper's audits"

    def __call__(self, batch: ScoredBatch) -> Advantages:
        advantage_B, std_B = self.normalised(batch, batch.task_reward_B)
        return Advantages(batch.column(advantage_B), advantage_task_B=advantage_B, unified_std_B=std_B)


@dataclass(frozen=True, kw_only=True)
class PgOpd(Method):
    """A = clip(delta, -5, 5)."""

    name = "pg_opd"
    source = "eq:teacher-token-reward as the advantage; the clip is not in the paper"
    reads = TEACHER
    needs_group = False

    def __call__(self, batch: ScoredBatch) -> Advantages:
        return Advantages(batch.gap_BT.clamp(-GAP_CLIP, GAP_CLIP), teacher_reward_B=batch.teacher_reward_B)


@dataclass(frozen=True, kw_only=True)
class GrpoPlusOpd(Grpo):
    """A = A^GRPO, A_opd = clip(delta, -5, 5)."""

    name = "grpo_plus_opd"
    source = "the paper's naive hybrid; coefficient and gap clip are not in the paper"
    reads = TEACHER

    opd_coef: Finite = 1.0  # Weight of the second surrogate, PG(A_opd), in the loss.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        opd_BT = batch.gap_BT.clamp(-GAP_CLIP, GAP_CLIP)
        return replace(super().__call__(batch), advantage_opd_BT=opd_BT, teacher_reward_B=batch.teacher_reward_B)


@dataclass(frozen=True, kw_only=True)
class DistilledRl(Grpo):
    """A = w A^GRPO; w = clip(pi_T/pi_old, 1/3, 3) / its geometric mean where A^GRPO > 0, else 1."""

    name = "distilled_rl"
    source = "the paper's appendix on closest methods; the bound 3 is from that method's own scripts"
    reads = TEACHER
    identities, monitored = ("finite", "log_weight"), ("budget",)

    def __call__(self, batch: ScoredBatch) -> Advantages:
        grpo, bound = super().__call__(batch), math.log(RATIO_BOUND)
        log_w_BT = batch.gap_BT.clamp(-bound, bound)
        log_w_BT = log_w_BT - batch.column(batch.token_mean(log_w_BT))
        w_BT = log_w_BT.masked_fill(grpo.advantage_BT <= 0, 0.0).exp()
        return replace(
            grpo, advantage_BT=w_BT * grpo.advantage_BT, weight_BT=w_BT, teacher_reward_B=batch.teacher_reward_B
        )


@dataclass(frozen=True, kw_only=True)
class Atod(Grpo):
    """A = kappa(s) w_turn delta + lambda(s) A^GRPO; kappa 1 to 0.1 and lambda 1 to 2 over 80 steps.

    ``kappa(s) = max(0.1, 1 - 0.9 p)`` and ``lambda(s) = 1 + p`` with ``p = min(s / 80, 1)``, s completed steps.
    """

    name = "atod"
    source = "the paper's appendix on closest methods; schedule figures are second-hand; one turn gives w_turn 0.75"
    reads = TEACHER
    reads_run = ("step",)

    # A token whose text contains this ends a turn; null: one turn. A newline is "\n" in YAML, $'...=\n' in a shell.
    turn_separator: str | None = None

    def __call__(self, batch: ScoredBatch) -> Advantages:
        p = min(batch.run.step / ANNEAL_STEPS, 1.0)
        kappa, rho = max(KAPPA_LOW, 1.0 - KAPPA_FALL * p), 1.0 + RHO_RISE * p
        grpo, w_BT = super().__call__(batch), turn_weight(batch)
        advantage_BT = kappa * w_BT * batch.gap_BT + rho * grpo.advantage_BT
        return replace(grpo, advantage_BT=advantage_BT, weight_BT=w_BT, teacher_reward_B=batch.teacher_reward_B)


def turn_weight(batch: ScoredBatch) -> Tensor:
    """T-DUR weight of each token's turn, ``w = 1 - (1 - d)(1 - h)``; [B, T].

    d is the turn's mean |delta| and h its mean -log pi_old, each scaled to [0, 1] over the turns of the response. With
    one turn both are 1/2 by the rule for flat ranges, so w is constant 0.75.
    """
    if batch.segments_BT is None:
        return batch.gap_BT * 0 + 0.75
    d_BT, h_BT = (batch.scaled_over_turns(value_BT) for value_BT in (batch.gap_BT.abs(), -batch.old_logp_BT))
    return (1.0 - (1.0 - d_BT) * (1.0 - h_BT)).to(batch.gap_BT.dtype)
