"""From GRPO to the teacher, as far as the verdicts vouch for it.

Legend: B responses, T tokens (padded).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from nemo_uecr.core import GAP_CLIP
from nemo_uecr.core.methods.base import Advantages
from nemo_uecr.core.methods.uecr import Uecr, UnifiedAdvantage
from nemo_uecr.ranges import BelowOne, Range

if TYPE_CHECKING:
    from nemo_uecr.core.record import ScoredBatch


@dataclass(frozen=True, kw_only=True)
class UecrTrust(Uecr):
    """A = (1 - kappa) A^GRPO + kappa A^UECR, A_opd = kappa clip(delta, -5, 5); kappa: how far the teacher is trusted.

    ``kappa = max(0, sum of (k of right - k of wrong) / (groups + 1))`` over mixed groups (`trust`). At 0 the advantage
    is GRPO's, bit for bit, at 1 the first surrogate is UECR's. Between them it has UECR's form and identities:

        A^U = (1 - kappa) A^GRPO + kappa A^U of UECR,   A^task|U likewise,   A^T|U = kappa A^T|U of UECR
        A = A^U + rho A^task|U q,   q = share q of UECR,   share = kappa A^task|U of UECR / A^task|U, in [0, 1]

    share is constant on a response, since both task advantages are the centred verdict over a divisor: the form. The
    decomposition is kappa times UECR's, plus (1 - kappa) A^GRPO on both sides. q sums to 0 over a response as UECR's
    does, so weights average to 1, and it is no larger than UECR's, so every weight is positive.
    """

    name = "uecr_trust"
    source = "ours, docs/method.md; A_opd is grpo_plus_opd's"
    reads_run = ("state",)
    opd_coef: ClassVar[float] = 1.0
    revision = 2

    # Number of tokens whose importance weight k estimates.
    horizon: Annotated[float, Range(0, 1000, open_low=True, unit="tokens")] = 32.0
    # Gaps up to this size count as style: k reads only what exceeds it, on either side.
    margin: Annotated[float, Range(0, GAP_CLIP, unit="nats")] = 0.2
    memory: BelowOne = 0.8  # Weight of the previous step's groups; the step before that has its square, and so on.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        state = trust(batch, horizon=self.horizon, margin=self.margin, memory=self.memory)
        kappa = state["kappa"]
        grpo_B, grpo_std_B = self.normalised(batch, batch.task_reward_B)
        u = self.unify(batch.task_reward_B, batch.teacher_reward_B, batch.groups)
        moved_B = kappa * u.task  # what ECR redistributes; GRPO redistributes nothing
        unified_B, task_B = (1 - kappa) * grpo_B + kappa * u.unified, (1 - kappa) * grpo_B + moved_B
        r = self.residual(batch, batch.column(u.task).sign())
        advantage_BT = batch.column(unified_B) + self.rho * batch.column(moved_B) * r.q_BT
        # moved / task: both are the centred verdict over a divisor, so that this is defined where they are 0, too.
        divisor_B = self.divisor(grpo_std_B)
        share_B = kappa * divisor_B / (kappa * divisor_B + (1 - kappa) * self.divisor(u.std))
        q_BT = batch.column(share_B) * r.q_BT
        return replace(
            self.broadcast(batch, UnifiedAdvantage(unified_B, task_B, kappa * u.teacher, u.std)),
            advantage_BT=advantage_BT, advantage_opd_BT=kappa * batch.gap_BT.clamp(-GAP_CLIP, GAP_CLIP),
            weight_BT=1 + self.rho * q_BT, residual_BT=q_BT, direction_BT=r.d_BT, confidence_BT=r.c_BT,
            centre_B=r.mu_B1[:, 0], state=state,
        )  # fmt: skip


def trust(batch: ScoredBatch, *, horizon: float, margin: float, memory: float) -> dict[str, float]:
    """Fading sums over mixed groups, and kappa in [0, 1], computed from them; primes mark those of the step before.

        k = min(1, exp(horizon mean_t (clip(delta, -5, 5) - clip(delta, -margin, margin))))
        lead = memory lead' + sum over mixed groups of (mean k of right - mean k of wrong responses)
        groups = memory groups' + number of mixed groups
        kappa = max(0, lead / (groups + 1))

    k estimates the importance weight of ``horizon`` tokens from the response's mean excess gap, cut at 1: near 1 where
    the teacher would have written the response, too, near 0 where it objects. Right and wrong are above and below the
    group's mean reward, so that a prompt's difficulty has no part in it. The 1 is a prior: one group of lead 0.
    """
    groups, verdict_B = batch.groups, batch.groups.centre(batch.task_reward_B)
    beyond_B = batch.teacher_reward_B - batch.token_mean(batch.gap_BT.clamp(-margin, margin))
    kept_B = (horizon * beyond_B).clamp_max(0.0).exp()
    sides_B = [(side_B > 0).double() for side_B in (verdict_B, -verdict_B)]
    right_B, wrong_B = (groups.mean(side_B * kept_B) / groups.mean(side_B) for side_B in sides_B)
    lead_B = right_B - wrong_B  # NaN where the group is not mixed
    share_B = lead_B.isfinite().double() / groups.size_P[groups.index_B]  # sums to 1 over a mixed group
    before = batch.run.state
    lead = memory * before.get("lead", 0.0) + float((share_B * lead_B.nan_to_num()).sum())
    number = memory * before.get("groups", 0.0) + float(share_B.sum())
    return {"lead": lead, "groups": number, "kappa": max(0.0, lead / (number + 1.0))}
