"""The metrics of a step that come from the method alone, the same for both back ends."""

from __future__ import annotations

from collections.abc import Mapping

from nemo_uecr.core.records import Advantages, ScoredBatch, Settings
from nemo_uecr.telemetry import statistics
from nemo_uecr.telemetry.splits import split_metrics

#: Residuals whose name among the metrics says "error".
ERROR_NAMES = {"budget": "budget_error", "decomposition": "decomposition_error"}


def method_metrics(batch: ScoredBatch, advantages: Advantages, settings: Settings, *, noise: float) -> dict[str, float]:
    """Rewards, groups, advantages, the teacher's gap, token weights, and their splits.

    Args:
        batch: the record that the method read.
        advantages: what it made of it, in detail.
        settings: its scalars.
        noise: below this standard deviation a group is counted.
    """
    return {
        **statistics.reward_metrics(batch, advantages, settings),
        **statistics.group_metrics(batch, advantages, noise=noise),
        **statistics.advantage_metrics(batch, advantages, settings),
        **statistics.teacher_metrics(batch),
        **statistics.credit_metrics(batch, advantages),
        **split_metrics(batch, advantages),
    }


def identity_metrics(residuals: Mapping[str, float]) -> dict[str, float]:
    """The worst residual of each identity by its metric's name."""
    return {f"identity/{ERROR_NAMES.get(name, name)}": value for name, value in residuals.items()}
