"""GRPO: the verifier alone."""

from __future__ import annotations

from torch import Tensor

from nemo_uecr.core.checks import token_counts
from nemo_uecr.core.groups import Groups, normalised
from nemo_uecr.core.methods.base import Method, broadcast, stored
from nemo_uecr.core.records import Advantages, ScoredBatch, Settings


def grpo_advantage(batch: ScoredBatch, settings: Settings, method: str) -> tuple[Tensor, Tensor]:
    """``A^GRPO = (R^task - mean) / (Std(R^task) + eps)`` and the group std; [B] float64 each.

    References:
        eq:grpo-adv.
    """
    token_counts(batch)  # an empty response is an error for every method
    return normalised(
        batch.task_reward_B,
        Groups.of(batch.group_B),
        floor=settings.need("std_floor", method),
        sample=bool(settings.need("sample_std", method)),
    )


def _grpo(batch: ScoredBatch, settings: Settings, detail: bool) -> Advantages:
    advantage_B, std_B = grpo_advantage(batch, settings, "grpo")
    return Advantages(
        advantage_BT=broadcast(batch, advantage_B),
        advantage_task_B=stored(advantage_B, batch),
        unified_std_B=stored(std_B, batch),
    )


GRPO = Method(
    name="grpo",
    equation="A = A^GRPO = (R^task - mean) / (Std(R^task) + eps), the same on every token",
    provenance="eq:grpo-adv; the standard deviation's form and eps follow the paper's audits",
    identities=("finite",),
    advantages=_grpo,
)
