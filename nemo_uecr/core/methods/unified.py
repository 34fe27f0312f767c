"""PUU (rho = 0) and its counterpart with separate normalisation: response-level advantages, broadcast."""

from __future__ import annotations

from nemo_uecr.core.groups import Groups, normalised
from nemo_uecr.core.methods.base import Method, broadcast, stored
from nemo_uecr.core.puu import UnifiedAdvantage, teacher_reward, unified_advantage
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings


def unified(
    batch: ScoredBatch, settings: Settings, method: str, *, alpha: float
) -> tuple[UnifiedAdvantage, Advantages]:
    """PUU's components in float64, and the broadcast advantage with them as stored."""
    reward_B = teacher_reward(batch)
    parts = unified_advantage(
        batch.task_reward_B,
        reward_B,
        Groups.of(batch.group_B),
        alpha=alpha,
        floor=settings.need("std_floor", method),
        sample=bool(settings.need("sample_std", method)),
    )
    return parts, Advantages(
        advantage_BT=broadcast(batch, parts.unified_B),
        advantage_unified_B=stored(parts.unified_B, batch),
        advantage_task_B=stored(parts.task_B, batch),
        advantage_teacher_B=stored(parts.teacher_B, batch),
        teacher_reward_B=stored(reward_B, batch),
        unified_std_B=stored(parts.std_B, batch),
    )


def _puu(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    return unified(batch, settings, "puu", alpha=settings.need("alpha", "puu"))[1]


def _separate_norm(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    alpha = settings.need("alpha", "separate_norm")
    floor = settings.need("std_floor", "separate_norm")
    sample = bool(settings.need("sample_std", "separate_norm"))
    groups, reward_B = Groups.of(batch.group_B), teacher_reward(batch)
    task_B, std_B = normalised(batch.task_reward_B, groups, floor=floor, sample=sample)
    teacher_B, _ = normalised(reward_B, groups, floor=floor, sample=sample)
    total_B = task_B + alpha * teacher_B
    return Advantages(
        advantage_BT=broadcast(batch, total_B),
        advantage_task_B=stored(task_B, batch),
        advantage_teacher_B=stored(teacher_B, batch),
        teacher_reward_B=stored(reward_B, batch),
        unified_std_B=stored(std_B, batch),
    )


PUU = Method(
    name="puu",
    equation="A = A^U = (R^U - mean) / (Std(R^U) + eps), R^U = R^task + alpha R^T",
    provenance="eq:unified-reward, eq:unified-advantage; the clip of R^T follows eq:app-puu-audit-reward",
    identities=("finite", "decomposition"),
    advantages=_puu,
)

SEPARATE_NORM = Method(
    name="separate_norm",
    equation="A = norm(R^task) + alpha norm(R^T), each over its own standard deviation",
    provenance="tab:component-ablation, 'Separate norm.'",
    identities=("finite",),
    advantages=_separate_norm,
)
