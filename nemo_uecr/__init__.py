"""UECR-GRPO: on-policy distillation unified with GRPO.

The functions below take plain tensors. Importing this package
loads neither torch nor transformers: each name loads what it needs on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nemo_uecr.core.ecr import ecr_residual
    from nemo_uecr.core.loss import PolicyLoss, policy_loss
    from nemo_uecr.core.methods import method_advantage, uecr_advantage
    from nemo_uecr.core.puu import UnifiedAdvantage, teacher_reward, unified_advantage
    from nemo_uecr.core.records import Advantages, ScoredBatch
    from nemo_uecr.scoring.dense import token_logp, token_scores
    from nemo_uecr.scoring.records import TokenScores

__all__ = [
    "Advantages", "PolicyLoss", "ScoredBatch", "TokenScores", "UnifiedAdvantage", "__version__", "ecr_residual",
    "method_advantage", "policy_loss", "teacher_reward", "token_logp", "token_scores", "uecr_advantage",
    "unified_advantage",
]  # fmt: skip

__version__ = "0.2.0"

_HOMES = {
    "core.ecr": ("ecr_residual",),
    "core.loss": ("PolicyLoss", "policy_loss"),
    "core.methods": ("method_advantage", "uecr_advantage"),
    "core.puu": ("UnifiedAdvantage", "teacher_reward", "unified_advantage"),
    "core.records": ("Advantages", "ScoredBatch"),
    "scoring.dense": ("token_logp", "token_scores"),
    "scoring.records": ("TokenScores",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
