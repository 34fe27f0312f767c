"""The mathematics: pure functions of tensors that import only torch; this package itself loads it on first use.

Legend: B responses, P prompts (groups), T tokens (padded). Log-probabilities and entropies are in nats. Group
statistics are computed in float64; results have the dtype of the scores.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_uecr.core.functions import (
        ecr_residual,
        method_advantage,
        teacher_reward,
        uecr_advantage,
        unified_advantage,
    )
    from nemo_uecr.core.loss import PolicyLoss, policy_loss
    from nemo_uecr.core.methods import Advantages
    from nemo_uecr.core.methods.uecr import UnifiedAdvantage
    from nemo_uecr.core.record import ScoredBatch

#: Added to every group standard deviation (the paper's audits state the value).
EPSILON = 1e-6
#: R^T and the OPD advantage clip the gap to this many nats on both sides.
GAP_CLIP = 5.0

_HOMES = {
    "ecr_residual": "functions", "method_advantage": "functions",
    "teacher_reward": "functions", "uecr_advantage": "functions", "unified_advantage": "functions",
    "PolicyLoss": "loss", "policy_loss": "loss", "Advantages": "methods", "UnifiedAdvantage": "methods.uecr",
    "ScoredBatch": "record",
}  # fmt: skip

__all__ = [
    "Advantages", "PolicyLoss", "ScoredBatch", "UnifiedAdvantage", "ecr_residual", "method_advantage", "policy_loss",
    "teacher_reward", "uecr_advantage", "unified_advantage",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
