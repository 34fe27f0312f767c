"""The paper's ablations and controls of UECR: each changes one part of it.

A setting that a subclass fixes as a `ClassVar` is no key of its configuration.
Legend: B responses, T tokens (padded), [B, 1] one value per response.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nemo_uecr.core.methods.base import TEACHER, Advantages
from nemo_uecr.core.methods.uecr import Puu, Residual, Uecr

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_uecr.core.record import ScoredBatch


@dataclass(frozen=True, kw_only=True)
class EcrNoEntropy(Uecr):
    """UECR with c = 1 and the projection recomputed."""

    name, source = "ecr_no_entropy", "tab:component-ablation, 'w/o entropy'"
    reads = TEACHER
    tau_entropy: ClassVar[float] = math.inf  # type: ignore[misc]  # fixed

    def log_confidence(self, batch: ScoredBatch) -> Tensor:
        return batch.gap_BT.new_zeros(batch.gap_BT.shape)


@dataclass(frozen=True, kw_only=True)
class EcrNoProjection(Uecr):
    """UECR with mu = 0, so q = 1/2 c d and the response's task budget moves."""

    name, source = "ecr_no_projection", "tab:component-ablation, 'w/o projection'"
    identities: ClassVar[tuple[str, ...]] = ("finite", "decomposition")
    monitored = ("budget",)

    def residual(self, batch: ScoredBatch, sign_B1: Tensor) -> Residual:
        found = super().residual(batch, sign_B1)
        return found._replace(q_BT=0.5 * found.c_BT * found.d_BT, mu_B1=0 * found.mu_B1)


@dataclass(frozen=True, kw_only=True)
class EcrFullAdvantage(Uecr):
    """A = A^U (1 + rho q): the weight multiplies the whole unified advantage."""

    name, source = "ecr_full_advantage", "the paper's additional controls, item 4"

    def redistributed(self, unified_B1: Tensor, task_B1: Tensor) -> Tensor:
        return unified_B1


@dataclass(frozen=True, kw_only=True)
class EcrAlphaZero(Uecr):
    """UECR with alpha = 0: A = A^GRPO (1 + rho q)."""

    name, source = "ecr_alpha_zero", "the paper's additional controls, item 5"
    alpha: ClassVar[float] = 0.0  # type: ignore[misc]  # fixed


@dataclass(frozen=True, kw_only=True)
class EcrNoGap(Uecr):
    """UECR with q = 1/2 s (c - mean(c)): confidence alone gives the direction."""

    name = "ecr_no_gap"
    source = "the paper's additional controls, item 6; the form is not in the paper (its literal d = s gives q = 0)"
    tau_delta: ClassVar[float] = math.inf  # type: ignore[misc]  # fixed

    def residual(self, batch: ScoredBatch, sign_B1: Tensor) -> Residual:
        c_BT = super().residual(batch, sign_B1).c_BT
        mean_B1 = batch.column(batch.token_mean(c_BT))
        return Residual(0.5 * sign_B1 * (c_BT - mean_B1) * batch.mask_BT, sign_B1, c_BT, sign_B1 * mean_B1)


@dataclass(frozen=True, kw_only=True)
class ShuffledEntropy(Uecr):
    """UECR with the teacher entropies permuted within each response."""

    name, source = "shuffled_entropy", "the permutation control of the credit-localization audit"
    reads_run = ("seed",)

    def __call__(self, batch: ScoredBatch) -> Advantages:
        return super().__call__(batch.with_shuffled_entropy(batch.run.seed))


@dataclass(frozen=True, kw_only=True)
class SeparateNorm(Puu):
    """A = norm(R^task) + alpha norm(R^T), each over its own standard deviation."""

    name, source = "separate_norm", "tab:component-ablation, 'Separate norm.'"
    identities = ("finite",)

    def __call__(self, batch: ScoredBatch) -> Advantages:
        task_B, std_B = self.normalised(batch, batch.task_reward_B)
        teacher_B, _ = self.normalised(batch, batch.teacher_reward_B)
        return Advantages(
            batch.column(task_B + self.alpha * teacher_B), advantage_task_B=task_B, advantage_teacher_B=teacher_B,
            teacher_reward_B=batch.teacher_reward_B, unified_std_B=std_B,
        )  # fmt: skip
