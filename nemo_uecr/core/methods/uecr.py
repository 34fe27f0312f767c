"""UECR: PUU normalises verifier and teacher as one reward, ECR redistributes the verifier's credit over the tokens.

Legend: B responses, T tokens (padded), [B, 1] one value per response.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from nemo_uecr.core.methods.base import ENTROPY, TEACHER, Advantages, Grouped
from nemo_uecr.ranges import BelowOne, Finite, Nats

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.record import Groups, ScoredBatch


class Residual(NamedTuple):
    """ECR's residual q, and the direction d, confidence c and response mean mu that it is made of."""

    q_BT: Tensor
    d_BT: Tensor
    c_BT: Tensor
    mu_B1: Tensor


def direction(gap_BT: Tensor, sign_B1: Tensor | float, *, tau_delta: float) -> Tensor:
    """``d = tanh(s delta / 2 tau_delta)`` (eq:local-signal)."""
    return (sign_B1 * gap_BT / (2 * tau_delta)).tanh()


def log_confidence(entropy_BT: Tensor, *, tau_entropy: float) -> Tensor:
    """``log c = -H / tau_entropy`` (eq:local-signal)."""
    return -entropy_BT / tau_entropy


def ecr(d_BT: Tensor, log_c_BT: Tensor, mask_BT: Tensor) -> Residual:
    """``q = 1/2 c (d - mu)``, 0 outside the mask, of `direction` d and `log_confidence`.

    ``mu = sum_t c d / sum_t c``, so that q sums to 0 over a response. The softmax of log c is ``c / sum_t c``: a
    response whose confidence vanishes has q = 0 and never 0/0 (eq:local-signal, eq:projection-weights).
    """
    log_c_BT = log_c_BT.masked_fill(~mask_BT, -math.inf)
    mu_B1 = (log_c_BT.softmax(1) * d_BT).double().sum(1, keepdim=True).to(d_BT.dtype)
    c_BT = log_c_BT.exp()
    return Residual(0.5 * c_BT * (d_BT - mu_B1), d_BT, c_BT, mu_B1)


class UnifiedAdvantage(NamedTuple):
    """PUU's response-level quantities, float64, of the rewards' shape."""

    #: A^U.
    unified: Tensor
    #: A^task|U, exactly 0 in a group of equal task rewards.
    task: Tensor
    #: A^T|U, on the same denominator.
    teacher: Tensor
    #: Std(R^U) of the group, before floor and eps.
    std: Tensor


@dataclass(frozen=True, kw_only=True)
class Puu(Grouped):
    """A = A^U = (R^U - mean) / (Std(R^U) + eps), R^U = R^task + alpha R^T."""

    name = "puu"
    source = "eq:unified-reward, eq:unified-advantage; the clip of R^T follows eq:app-puu-audit-reward"
    reads = TEACHER
    identities: ClassVar[tuple[str, ...]] = ("finite", "decomposition")

    alpha: Finite  # Weight of the teacher reward in R^U.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        return self.broadcast(batch, self.unify(batch.task_reward_B, batch.teacher_reward_B, batch.groups))

    def unify(self, task_reward_B: Tensor, teacher_reward_B: Tensor, groups: Groups) -> UnifiedAdvantage:
        """``A^U = A^task|U + alpha A^T|U``, all over one denominator (prop:adv-decomposition).

        The parts are centred before they are added: in a nearly degenerate group, where eps alone divides, the
        rounding of ``R^task + alpha R^T`` would grow by a factor of a million.
        """
        task_B, teacher_B = groups.centre(task_reward_B), groups.centre(teacher_reward_B)
        unified_B = task_B + self.alpha * teacher_B
        std_B = groups.std(unified_B, sample=self.sample_std)
        scale_B = self.divisor(std_B)
        return UnifiedAdvantage(unified_B / scale_B, task_B / scale_B, teacher_B / scale_B, std_B)

    def broadcast(self, batch: ScoredBatch, u: UnifiedAdvantage) -> Advantages:
        """A^U on every token."""
        return Advantages(
            batch.column(u.unified), advantage_unified_B=u.unified, advantage_task_B=u.task,
            advantage_teacher_B=u.teacher, teacher_reward_B=batch.teacher_reward_B, unified_std_B=u.std,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Uecr(Puu):
    """A = A^U + rho A^task|U q; q = 1/2 c (d - mu), d = tanh(s delta / 2 tau_delta), c = exp(-H / tau_entropy)."""

    name = "uecr"
    source = "eq:local-signal, eq:projection-weights, eq:final-advantage"
    reads = ENTROPY
    identities: ClassVar[tuple[str, ...]] = ("finite", "decomposition", "budget", "residual_bound", "sign_kept")

    rho: BelowOne  # Strength of the token redistribution.
    tau_delta: Nats  # Scale of the gap inside the direction's tanh.
    tau_entropy: Nats  # Scale of the teacher entropy in the confidence.

    def __call__(self, batch: ScoredBatch) -> Advantages:
        u = self.unify(batch.task_reward_B, batch.teacher_reward_B, batch.groups)
        unified_B1, task_B1 = batch.column(u.unified), batch.column(u.task)
        r = self.residual(batch, task_B1.sign())
        # A^task|U (1 + rho q) + alpha A^T|U is the same number, but at rho = 0 not the bits of A^U.
        advantage_BT = unified_B1 + self.rho * self.redistributed(unified_B1, task_B1) * r.q_BT
        return replace(
            self.broadcast(batch, u), advantage_BT=advantage_BT, weight_BT=1 + self.rho * r.q_BT,
            residual_BT=r.q_BT, direction_BT=r.d_BT, confidence_BT=r.c_BT, centre_B=r.mu_B1[:, 0],
        )  # fmt: skip

    def residual(self, batch: ScoredBatch, sign_B1: Tensor) -> Residual:
        d_BT = direction(batch.gap_BT, sign_B1, tau_delta=self.tau_delta)
        return ecr(d_BT, self.log_confidence(batch), batch.mask_BT)

    def log_confidence(self, batch: ScoredBatch) -> Tensor:
        """The logarithm of c; an ablation has c = 1."""
        return log_confidence(batch.score("teacher_entropy"), tau_entropy=self.tau_entropy)

    def redistributed(self, unified_B1: Tensor, task_B1: Tensor) -> Tensor:
        """What ECR redistributes: here the verifier's share A^task|U; an ablation takes all of A^U."""
        return task_B1
